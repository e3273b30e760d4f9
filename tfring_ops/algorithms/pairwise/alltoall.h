// Alltoall: every rank has something for every other.
#ifndef TFRING_OPS_ALGORITHMS_PAIRWISE_ALLTOALL_H_
#define TFRING_OPS_ALGORITHMS_PAIRWISE_ALLTOALL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// `input` has a run for each rank, one after the other; output = the runs that
// the ranks have for this one, in the order of the ranks.  `sent_bytes[r]` is
// the length of the run for rank r, `received_bytes[r]` of that from rank r:
// what is sent to a rank must be what it receives.
absl::Status RingAlltoall(const RingContext& context, const void* input,
                          void* output, absl::Span<const int64_t> sent_bytes,
                          absl::Span<const int64_t> received_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_PAIRWISE_ALLTOALL_H_
