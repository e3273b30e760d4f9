// Lets a TensorFlow without CUDA lower functions for a GPU, though it cannot
// compile them: what the CUDA build registers in xla_gpu_jit.  Loaded before
// anything is lowered.
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace {

bool TakesAll(tensorflow::KernelDef* /*kernel*/) { return true; }

REGISTER_XLA_BACKEND(tensorflow::DEVICE_GPU_XLA_JIT, tensorflow::kGpuAllTypes,
                     TakesAll);

}  // namespace
