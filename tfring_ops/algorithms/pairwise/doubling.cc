#include "tfring_ops/algorithms/pairwise/doubling.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status SendRecv(const RingContext& context, int to, ConstBytes sent,
                      int from, Bytes received) {
  Transport& transport = context.transport;
  const auto segment_bytes = static_cast<size_t>(context.segment_bytes);
  std::vector<OperationId> requests;
  for (size_t at = 0; at < received.size(); at += segment_bytes) {
    requests.push_back(
        transport.StartRecv(from, received.subspan(at, segment_bytes)));
  }
  for (size_t at = 0; at < sent.size(); at += segment_bytes) {
    requests.push_back(
        transport.StartSend(to, sent.subspan(at, segment_bytes)));
  }
  for (const OperationId request : requests) {
    TFRING_RETURN_IF_ERROR(transport.Wait(request));
  }
  return absl::OkStatus();
}

absl::Status SendRecv(const RingContext& context, int to, const void* sent,
                      int from, void* received, int64_t bytes) {
  return SendRecv(context, to,
                  ConstBytes(static_cast<const std::byte*>(sent),
                             sent == nullptr ? 0 : bytes),
                  from,
                  Bytes(static_cast<std::byte*>(received),
                        received == nullptr ? 0 : bytes));
}

absl::Status SendRecv(const RingContext& context, int peer, const void* sent,
                      void* received, int64_t bytes) {
  return SendRecv(context, peer, sent, peer, received, bytes);
}

}  // namespace tfring
