#include "tfring_ops/runtime/stream_order.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda.h"

namespace tfring {
namespace {

// The streams and events of one entry.
struct StreamOrder {
  void* framework_stream;
  void* engine_stream = nullptr;  // known in step 3
  std::unique_ptr<CudaEvent> ready;
  std::unique_ptr<CudaEvent> finished;
};

}  // namespace

absl::Status OrderStreams(void* stream, int32_t device, TensorEntry& entry) {
  auto order = std::make_shared<StreamOrder>();
  order->framework_stream = stream;
  TFRING_ASSIGN_OR_RETURN(order->ready, CudaEvent::CreateOn(device));
  TFRING_ASSIGN_OR_RETURN(order->finished, CudaEvent::CreateOn(device));
  TFRING_RETURN_IF_ERROR(order->ready->Record(stream));

  entry.request.device = device;
  entry.on_start = [order](void* engine_stream) {
    order->engine_stream = engine_stream;
    return order->ready->Await(engine_stream);
  };
  if (entry.allocate_output) {
    entry.allocate_output =
        [order, allocate = std::move(entry.allocate_output)](
            int index,
            const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
      TFRING_ASSIGN_OR_RETURN(void* const output, allocate(index, dims));
      TFRING_RETURN_IF_ERROR(order->ready->Record(order->framework_stream));
      TFRING_RETURN_IF_ERROR(order->ready->Await(order->engine_stream));
      return output;
    };
  }
  entry.on_finish = [order](void* engine_stream) {
    TFRING_RETURN_IF_ERROR(order->finished->Record(engine_stream));
    return order->finished->Await(order->framework_stream);
  };
  return absl::OkStatus();
}

}  // namespace tfring
