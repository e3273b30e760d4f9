#include "tfring_ops/algorithms/ring/broadcast.h"

#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status RingBroadcast(const RingContext& context, void* data,
                           int64_t bytes, int root) {
  const int n = context.transport.size();
  if (n == 1) return absl::OkStatus();

  RingBuffers buffers;
  buffers.input = buffers.output = data;
  buffers.count = bytes;
  buffers.dtype = DataType::kUint8;
  Primitives prims(context, buffers);
  const Range all{0, bytes};
  const int steps_from_root = context.order.StepsFrom(root);
  if (steps_from_root == 0) {
    TFRING_RETURN_IF_ERROR(prims.Send(all));
  } else if (steps_from_root < n - 1) {
    TFRING_RETURN_IF_ERROR(prims.RecvCopySend(all));
  } else {
    TFRING_RETURN_IF_ERROR(prims.Recv(all));
  }
  return prims.Drain();
}

}  // namespace tfring
