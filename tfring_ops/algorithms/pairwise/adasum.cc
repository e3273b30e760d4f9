#include "tfring_ops/algorithms/pairwise/adasum.h"

#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status RingAdasum(const RingContext& context, void* data, void* received,
                        int64_t count, DataType dtype) {
  const Kernels& kernels = context.kernels;
  const int64_t bytes = count * SizeInBytes(dtype);
  const Doubling doubling(context.transport.rank(), context.transport.size());
  if (doubling.gives()) {
    const int peer = doubling.surplus_peer();
    TFRING_RETURN_IF_ERROR(
        SendRecv(context, peer, data, /*received=*/nullptr, bytes));
    return SendRecv(context, peer, /*sent=*/nullptr, data, bytes);
  }
  if (doubling.takes()) {
    TFRING_RETURN_IF_ERROR(SendRecv(context, doubling.surplus_peer(),
                                    /*sent=*/nullptr, received, bytes));
    kernels.Adasum(data, received, data, count, dtype);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }

  for (int distance = 1; distance < doubling.doublers(); distance *= 2) {
    TFRING_RETURN_IF_ERROR(
        SendRecv(context, doubling.Peer(distance), data, received, bytes));
    // Both ranks take the operands in the same order, so that their bits are
    // equal.
    if (doubling.ComesFirst(distance)) {
      kernels.Adasum(data, data, received, count, dtype);
    } else {
      kernels.Adasum(data, received, data, count, dtype);
    }
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  if (!doubling.takes()) return absl::OkStatus();
  return SendRecv(context, doubling.surplus_peer(), data, /*received=*/nullptr,
                  bytes);
}

}  // namespace tfring
