#include "tfring_ops/algorithms/pairwise/doubling.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status SendRecv(const RingContext& context, int to, const void* sent,
                      int from, void* received, int64_t bytes) {
  Transport& transport = context.transport;
  std::vector<OperationId> requests;
  const auto in_segments = [&](const auto& start) {
    for (int64_t offset = 0; offset < bytes; offset += context.segment_bytes) {
      requests.push_back(
          start(offset, std::min(context.segment_bytes, bytes - offset)));
    }
  };
  if (received != nullptr) {
    in_segments([&](int64_t offset, int64_t length) {
      auto* const data = static_cast<std::byte*>(received) + offset;
      return transport.StartRecv(from, Bytes(data, length));
    });
  }
  if (sent != nullptr) {
    in_segments([&](int64_t offset, int64_t length) {
      const auto* const data = static_cast<const std::byte*>(sent) + offset;
      return transport.StartSend(to, ConstBytes(data, length));
    });
  }
  for (const OperationId request : requests) {
    TFRING_RETURN_IF_ERROR(transport.Wait(request));
  }
  return absl::OkStatus();
}

absl::Status SendRecv(const RingContext& context, int peer, const void* sent,
                      void* received, int64_t bytes) {
  return SendRecv(context, peer, sent, peer, received, bytes);
}

}  // namespace tfring
