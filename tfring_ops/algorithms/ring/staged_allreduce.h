// Ring allreduce of data that does not lie in memory as it travels.
#ifndef TFRING_OPS_ALGORITHMS_RING_STAGED_ALLREDUCE_H_
#define TFRING_OPS_ALGORITHMS_RING_STAGED_ALLREDUCE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// Data that are loaded into a stage, a block at a time, and stored from there.
class Staging {
 public:
  virtual ~Staging() = default;

  // Writes the elements `range` to `to`, in the form in which they are sent.
  virtual void Load(Range range, std::byte* to) = 0;
  // Stores the reduced elements `range` from `from`.
  virtual void Store(Range range, const std::byte* from) = 0;
};

// RingAllreduce of `buffers.count` elements of `staging`; the pointers in
// `buffers` are not used.  `stage` has the same length on every rank.  It holds
// all elements, or at least two for each rank; StageBytes gives the length of
// two blocks, which are enough (see Note [Reduction by blocks]).
absl::Status StagedRingAllreduce(const RingContext& context,
                                 RingBuffers buffers,
                                 absl::Span<std::byte> stage, Staging& staging);

int64_t StageBytes(const RingContext& context, DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_STAGED_ALLREDUCE_H_
