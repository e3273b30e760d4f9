// Lets a TensorFlow without CUDA lower functions for a GPU, though it cannot
// compile them.  It registers the same backend as xla_gpu_jit in the CUDA
// build, and must be loaded before a function is lowered.
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace {

bool TakesAll(tensorflow::KernelDef* /*kernel*/) { return true; }

REGISTER_XLA_BACKEND(tensorflow::DEVICE_GPU_XLA_JIT, tensorflow::kGpuAllTypes,
                     TakesAll);

}  // namespace
