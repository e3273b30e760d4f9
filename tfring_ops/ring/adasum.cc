#include "tfring_ops/ring/adasum.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// Sends `bytes` of `sent` to `peer`, and receives as many from it; either may
// be null.
absl::Status Exchange(const RingContext& context, int peer, const void* sent,
                      void* received, int64_t bytes) {
  Transport& transport = context.transport;
  std::vector<Request> requests;
  const auto in_segments = [&](const auto& start) {
    for (int64_t offset = 0; offset < bytes; offset += context.segment_bytes) {
      requests.push_back(
          start(offset, std::min(context.segment_bytes, bytes - offset)));
    }
  };
  if (received != nullptr) {
    in_segments([&](int64_t offset, int64_t length) {
      auto* const to = static_cast<std::byte*>(received) + offset;
      return transport.StartRecv(peer, Bytes(to, length));
    });
  }
  if (sent != nullptr) {
    in_segments([&](int64_t offset, int64_t length) {
      const auto* const from = static_cast<const std::byte*>(sent) + offset;
      return transport.StartSend(peer, ConstBytes(from, length));
    });
  }
  for (const Request request : requests) {
    TFRING_RETURN_IF_ERROR(transport.Wait(request));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RingAdasum(const RingContext& context, void* data, void* received,
                        int64_t count, DataType dtype) {
  const Kernels& kernels = context.kernels;
  const int n = context.transport.size();
  const int rank = context.transport.rank();
  const int64_t bytes = count * SizeInBytes(dtype);
  int doubling = 1;  // ranks, the largest power of two
  while (2 * doubling <= n) doubling *= 2;

  // Of the first 2 * surplus ranks, the even ones give theirs to the odd ones.
  const int surplus = n - doubling;
  const bool paired = rank < 2 * surplus;
  if (paired && rank % 2 == 0) {
    TFRING_RETURN_IF_ERROR(
        Exchange(context, rank + 1, data, /*received=*/nullptr, bytes));
    return Exchange(context, rank + 1, /*sent=*/nullptr, data, bytes);
  }
  if (paired) {
    TFRING_RETURN_IF_ERROR(
        Exchange(context, rank - 1, /*sent=*/nullptr, received, bytes));
    kernels.Adasum(data, received, data, count, dtype);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }

  // The others double, by numbers of their own.
  const int own = paired ? rank / 2 : rank - surplus;
  for (int distance = 1; distance < doubling; distance *= 2) {
    const int other = own ^ distance;
    const int peer = other < surplus ? 2 * other + 1 : other + surplus;
    TFRING_RETURN_IF_ERROR(Exchange(context, peer, data, received, bytes));
    // Both ranks in one order, or their bits might differ.
    if (own < other) {
      kernels.Adasum(data, data, received, count, dtype);
    } else {
      kernels.Adasum(data, received, data, count, dtype);
    }
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  if (!paired) return absl::OkStatus();
  return Exchange(context, rank - 1, data, /*received=*/nullptr, bytes);
}

}  // namespace tfring
