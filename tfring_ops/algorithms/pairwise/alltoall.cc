#include "tfring_ops/algorithms/pairwise/alltoall.h"

#include <cstddef>
#include <vector>

#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status RingAlltoall(const RingContext& context, const void* input,
                          void* output, absl::Span<const int64_t> sent_bytes,
                          absl::Span<const int64_t> received_bytes) {
  const int n = context.transport.size();
  const int rank = context.transport.rank();
  const auto* const from = static_cast<const std::byte*>(input);
  auto* const to = static_cast<std::byte*>(output);
  const std::vector<Range> sent = Runs(sent_bytes);
  const std::vector<Range> received = Runs(received_bytes);
  context.kernels.Copy(to + received[rank].offset, from + sent[rank].offset,
                       sent[rank].count);
  TFRING_RETURN_IF_ERROR(context.kernels.Synchronize());

  // In step j each rank sends to the rank j places behind it and receives from
  // the rank j places before it.  Receives are posted first, and a rank waits
  // only for ranks in the same step.  So the ranks in the earliest step wait
  // for nobody.
  for (int j = 1; j < n; ++j) {
    const int next = (rank + j) % n;
    const int prev = (rank + n - j) % n;
    TFRING_RETURN_IF_ERROR(SendRecv(
        context, next, ConstBytes(from + sent[next].offset, sent[next].count),
        prev, Bytes(to + received[prev].offset, received[prev].count)));
  }
  return absl::OkStatus();
}

}  // namespace tfring
