// TensorFlow's streams, for runtime/stream_order.h.
#ifndef TFRING_OPS_TF_GPU_STREAM_H_
#define TFRING_OPS_TF_GPU_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/runtime/stream_order.h"

namespace tfring {

// A kernel's GPU, and the framework's stream on it: a CUstream.
struct GpuStream {
  int32_t device;
  void* stream;
};
// None if the kernel runs on the CPU.
std::optional<GpuStream> GpuStreamOf(tensorflow::OpKernelContext* context);

// Makes `entry` one of the kernel's GPU; does nothing, and returns null, if it
// runs on the CPU, or has no tensors.
// REQUIRES: as StreamOrder::Of.
absl::StatusOr<std::shared_ptr<StreamOrder>> StreamOrderOf(
    tensorflow::OpKernelContext* context, TensorEntry& entry);

}  // namespace tfring

#endif  // TFRING_OPS_TF_GPU_STREAM_H_
