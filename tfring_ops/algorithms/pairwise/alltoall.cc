#include "tfring_ops/algorithms/pairwise/alltoall.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

std::vector<Range> Runs(absl::Span<const int64_t> lengths) {
  std::vector<Range> runs;
  int64_t total = 0;
  for (const int64_t length : lengths) {
    runs.push_back({total, length});
    total += length;
  }
  return runs;
}

// Calls visit(Range) for each segment of `run`.
template <typename Visitor>
void ForEachSegment(Range run, int64_t segment_bytes, const Visitor& visit) {
  for (int64_t first = 0; first < run.count; first += segment_bytes) {
    visit(
        Range{run.offset + first, std::min(segment_bytes, run.count - first)});
  }
}

}  // namespace

absl::Status RingAlltoall(const RingContext& context, const void* input,
                          void* output, absl::Span<const int64_t> sent_bytes,
                          absl::Span<const int64_t> received_bytes) {
  Transport& transport = context.transport;
  const int n = transport.size();
  const int rank = transport.rank();
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
    std::vector<OperationId> requests;
    ForEachSegment(received[prev], context.segment_bytes, [&](Range segment) {
      requests.push_back(
          transport.StartRecv(prev, Bytes(to + segment.offset, segment.count)));
    });
    ForEachSegment(sent[next], context.segment_bytes, [&](Range segment) {
      requests.push_back(transport.StartSend(
          next, ConstBytes(from + segment.offset, segment.count)));
    });
    for (const OperationId request : requests) {
      TFRING_RETURN_IF_ERROR(transport.Wait(request));
    }
  }
  return absl::OkStatus();
}

}  // namespace tfring
