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

// The source and destination of such data: it is loaded into a stage, a block
// at a time, and stored from there.
class Staging {
 public:
  virtual ~Staging() = default;

  // Writes the elements `range`, as they travel, to `to`.
  virtual void Load(Range range, std::byte* to) = 0;
  // Stores the reduced elements `range` from `from`.
  virtual void Store(Range range, const std::byte* from) = 0;
};

// RingAllreduce of `buffers.count` elements of `staging`; the other buffers are
// not used.  `stage`, of the same length on every rank, holds all of them, or
// else at least two elements for each rank; two blocks are enough (see Note
// [Reduction by blocks]), which StageBytes gives.
absl::Status StagedRingAllreduce(const RingContext& context,
                                 RingBuffers buffers,
                                 absl::Span<std::byte> stage, Staging& staging);

int64_t StageBytes(const RingContext& context, DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_STAGED_ALLREDUCE_H_
