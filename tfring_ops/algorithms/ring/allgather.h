// Ring allgather of runs; their lengths may differ between ranks.
#ifndef TFRING_OPS_ALGORITHMS_RING_ALLGATHER_H_
#define TFRING_OPS_ALGORITHMS_RING_ALLGATHER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// output = the ranks' inputs, concatenated.  `bytes_of_rank[r]` is the length
// of rank r's input; the list is the same on every rank.
absl::Status RingAllgather(const RingContext& context, const void* input,
                           void* output,
                           absl::Span<const int64_t> bytes_of_rank);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_ALLGATHER_H_
