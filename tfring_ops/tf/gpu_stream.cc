#include "tfring_ops/tf/gpu_stream.h"

#include "tensorflow/core/framework/device_base.h"
#include "xla/stream_executor/stream.h"

namespace tfring {

std::optional<GpuStream> GpuStreamOf(tensorflow::OpKernelContext* context) {
  const auto* const info =
      context->device()->tensorflow_accelerator_device_info();
  if (info == nullptr) return std::nullopt;
  return GpuStream{info->gpu_id, context->op_device_context()
                                     ->stream()
                                     ->platform_specific_handle()
                                     .stream};
}

}  // namespace tfring
