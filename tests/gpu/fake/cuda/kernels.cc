// The kernels' own source, compiled for the host: the threads of a grid run in
// turn.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/gpu/fake/cuda/fake_cuda.h"
#include "tfring_ops/base/half.h"

namespace cuda_source {

struct Index {
  unsigned x;
};
// CUDA's words.
thread_local Index blockIdx, threadIdx, blockDim, gridDim;
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct alignas(8) uint2 {
  unsigned x, y;
};

static float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
static unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// The two instructions that the source asks for by name.
static void Convert(const char* assembly, float& value, uint16_t& bits) {
  if (std::strstr(assembly, "cvt.f32.f16") != nullptr) {
    value = static_cast<float>(tfring::Float16::FromBits(bits));
  } else {
    bits = tfring::Float16(value).bits();
  }
}

}  // namespace cuda_source

#define __device__
#define __launch_bounds__(threads)
#define __global__ [[gnu::visibility("default")]]
#define asm(assembly) Convert(#assembly, value, bits)
namespace cuda_source {
// NOLINTNEXTLINE(bugprone-suspicious-include)
#include "tfring_ops/kernels/cuda_kernels.cu"
}  // namespace cuda_source
#undef asm

namespace tfring::fake_cuda {

void* FindKernel(const char* name) {
  // In this library, of whatever name.
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(&GetOptions), &info);
  void* const library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : dlsym(library, name);
}

void RunGrid(unsigned blocks, unsigned threads,
             const std::function<void()>& kernel) {
  using namespace cuda_source;  // NOLINT(google-build-using-namespace)
  gridDim.x = blocks;
  blockDim.x = threads;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) kernel();
  }
}

}  // namespace tfring::fake_cuda
