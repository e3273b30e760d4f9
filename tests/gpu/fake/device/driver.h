// The fake driver, as the device of this folder uses it.
#ifndef TESTS_GPU_FAKE_DEVICE_DRIVER_H_
#define TESTS_GPU_FAKE_DEVICE_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

// Declares functions of libcuda.so.1, which is the fake one; 0 is success.
using CUdeviceptr = uint64_t;
using CUcontext = void*;
using CUevent = void*;
using CUstream = void*;
extern "C" {
int cuInit(unsigned flags);
int cuDeviceGetCount(int* count);
int cuDeviceGet(int* device, int ordinal);
int cuDevicePrimaryCtxRetain(CUcontext* context, int device);
int cuCtxPushCurrent_v2(CUcontext context);
int cuCtxPopCurrent_v2(CUcontext* context);
int cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes);
int cuMemFree_v2(CUdeviceptr memory);
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags);
int cuMemFreeHost(void* memory);
int cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream);
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                         CUstream);
int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                         CUstream);
int cuEventCreate(CUevent* event, unsigned flags);
int cuEventDestroy_v2(CUevent event);
int cuEventQuery(CUevent event);
int cuEventRecord(CUevent event, CUstream stream);
int cuCtxSynchronize();
int cuLaunchHostFunc(CUstream stream, void (*call)(void* argument),
                     void* argument);
int cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority);
int cuStreamDestroy_v2(CUstream stream);
int cuStreamSynchronize(CUstream stream);
int cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
// The host's address for so much device memory; no real driver has it.
void* FakeCudaOnHost(void* memory, size_t bytes);
}

namespace tfring::fake_gpu {

// TensorFlow runs its kernels on this stream.
inline constexpr CUstream kComputes = nullptr;

// Each thread has its own context, and TensorFlow has many threads.
inline void UseContext(int ordinal) {
  static thread_local int in_use = -1;
  if (in_use == ordinal) return;
  static std::mutex mutex;
  static auto* const contexts = new std::map<int, CUcontext>();
  const std::lock_guard<std::mutex> lock(mutex);
  CUcontext& context = (*contexts)[ordinal];
  if (context == nullptr) {
    int device = 0;
    cuInit(0);
    cuDeviceGet(&device, ordinal);
    cuDevicePrimaryCtxRetain(&context, device);
  }
  CUcontext before = nullptr;
  if (in_use >= 0) cuCtxPopCurrent_v2(&before);
  in_use = ordinal;
  cuCtxPushCurrent_v2(context);
}

}  // namespace tfring::fake_gpu

#endif  // TESTS_GPU_FAKE_DEVICE_DRIVER_H_
