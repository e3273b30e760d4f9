// Ring reduce-scatter: the first half of an allreduce, with chunks of any
// lengths.
#ifndef TFRING_OPS_ALGORITHMS_RING_REDUCE_SCATTER_H_
#define TFRING_OPS_ALGORITHMS_RING_REDUCE_SCATTER_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// Chunk `chunks[rank]` of the output = the same chunk of the reduction of every
// rank's input.  The output is as long as the input, and its other chunks are
// undefined: see Note [Partial sums go to the output].  `chunks` is the same on
// every rank; chunks may be empty and must not overlap.  kAverage divides by
// the number of ranks, in addition to `buffers.scale`.
absl::Status RingReduceScatter(const RingContext& context, RingBuffers buffers,
                               absl::Span<const Range> chunks);

// RingReduceScatter with an output that consists of chunk `chunks[rank]` alone
// and does not overlap the input.  Partial sums stay in the context's scratch.
absl::Status RingReduceScatterOwn(const RingContext& context,
                                  RingBuffers buffers,
                                  absl::Span<const Range> chunks);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_REDUCE_SCATTER_H_
