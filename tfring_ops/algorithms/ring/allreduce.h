// Ring allreduce: bandwidth-optimal, 2 (n - 1) / n of the buffer crosses each
// link whatever the number of ranks.
//
// Reference: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69
// (2009).
#ifndef TFRING_OPS_ALGORITHMS_RING_ALLREDUCE_H_
#define TFRING_OPS_ALGORITHMS_RING_ALLREDUCE_H_

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/blocks.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// output = reduction of every rank's input, bit-identical on every rank.
// kAverage divides by the number of ranks, on top of `buffers.scale`.
absl::Status RingAllreduce(const RingContext& context, RingBuffers buffers);

// Allreduces each of `blocks`, which have places of their own in `buffers`;
// kAverage only adds.
// REQUIRES: there are at least two ranks.
absl::Status RingAllreduceBlocks(const RingContext& context,
                                 const RingBuffers& buffers, Blocks& blocks);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_ALLREDUCE_H_
