// Allreduce of few bytes: log2 n rounds, where a ring takes 2 (n - 1) steps,
// each of the whole buffer.
#ifndef TFRING_OPS_ALGORITHMS_PAIRWISE_RECURSIVE_DOUBLING_H_
#define TFRING_OPS_ALGORITHMS_PAIRWISE_RECURSIVE_DOUBLING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// A longer buffer is reduced in successive blocks of this size.
inline constexpr int64_t kDoublingBlockBytes = 1 << 20;

// output = reduction of every rank's input, on any number of ranks.  An element
// has the same bits on every rank, and they do not depend on the rest of the
// buffer: each element is reduced along one tree over the ranks, and two ranks
// that exchange operands reduce them in the same order.
absl::Status RecursiveDoublingAllreduce(const RingContext& context,
                                        RingBuffers buffers);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_PAIRWISE_RECURSIVE_DOUBLING_H_
