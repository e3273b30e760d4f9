// Alltoall: every rank sends a run of elements to every other rank.
#ifndef TFRING_OPS_ALGORITHMS_PAIRWISE_ALLTOALL_H_
#define TFRING_OPS_ALGORITHMS_PAIRWISE_ALLTOALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// `input` consists of one run per rank, concatenated; output = the runs that
// the ranks have for this one, in rank order.  `sent_bytes[r]` is the length of
// the run for rank r, and `received_bytes[r]` that of the run from rank r.
// Each rank must receive exactly what is sent to it.
absl::Status RingAlltoall(const RingContext& context, const void* input,
                          void* output, absl::Span<const int64_t> sent_bytes,
                          absl::Span<const int64_t> received_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_PAIRWISE_ALLTOALL_H_
