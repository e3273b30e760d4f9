// TensorFlow's streams.
#ifndef TFRING_OPS_TF_GPU_STREAM_H_
#define TFRING_OPS_TF_GPU_STREAM_H_

#include <cstdint>
#include <optional>

#include "tensorflow/core/framework/op_kernel.h"

namespace tfring {

// The GPU of a kernel, and the framework's stream on it, a CUstream.
struct GpuStream {
  int32_t device;
  void* stream;
};
// Returns nothing if the kernel runs on the CPU.
std::optional<GpuStream> GpuStreamOf(tensorflow::OpKernelContext* context);

}  // namespace tfring

#endif  // TFRING_OPS_TF_GPU_STREAM_H_
