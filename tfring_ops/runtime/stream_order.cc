#include "tfring_ops/runtime/stream_order.h"

#include <memory>
#include <utility>
#include <vector>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::StatusOr<std::shared_ptr<StreamOrder>> StreamOrder::Of(
    void* stream, int32_t device, TensorEntry& entry) {
  std::shared_ptr<StreamOrder> order(new StreamOrder(stream));
  TFRING_ASSIGN_OR_RETURN(order->ready_, CudaEvent::CreateOn(device));
  TFRING_RETURN_IF_ERROR(order->ready_->Record(stream));

  entry.request.device = device;
  entry.on_start = [order](void* engine_stream) {
    order->engine_stream_ = engine_stream;
    return order->ready_->Await(engine_stream);
  };
  if (entry.allocate_output) {
    entry.allocate_output =
        [order, allocate = std::move(entry.allocate_output)](
            int index,
            const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
      TFRING_ASSIGN_OR_RETURN(void* const output, allocate(index, dims));
      TFRING_RETURN_IF_ERROR(order->ready_->Record(order->framework_stream_));
      TFRING_RETURN_IF_ERROR(order->ready_->Await(order->engine_stream_));
      return output;
    };
  }
  entry.on_finish = [order, device](void* engine_stream) -> absl::Status {
    TFRING_ASSIGN_OR_RETURN(auto finished, CudaEvent::CreateOn(device));
    TFRING_RETURN_IF_ERROR(finished->Record(engine_stream));
    order->finished_ = std::move(finished);
    return absl::OkStatus();
  };
  return order;
}

}  // namespace tfring
