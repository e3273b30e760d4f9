// For the files with entry points of the driver.
#ifndef TESTS_GPU_FAKE_CUDA_ENTRY_H_
#define TESTS_GPU_FAKE_CUDA_ENTRY_H_

#include "tests/gpu/fake/cuda/fake_cuda.h"

#define ENTRY extern "C" [[gnu::visibility("default")]] int
#define RETURN_IF_ERROR(result) \
  if (const int error = (result); error != kSuccess) return error

#endif  // TESTS_GPU_FAKE_CUDA_ENTRY_H_
