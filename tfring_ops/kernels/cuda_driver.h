// The CUDA driver's functions, found at run time: nothing is linked.
// Thread-safe.
//
// Types and numbers are from cuda.h 12.1; the names with _v2 are what that
// header's macros stand for.
#ifndef TFRING_OPS_KERNELS_CUDA_DRIVER_H_
#define TFRING_OPS_KERNELS_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tfring_ops/base/status_macros.h"

// Declared as in cuda.h, so that the two could be included together.
using CUdevice = int;
using CUdeviceptr = unsigned long long;  // NOLINT(google-runtime-int)
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};

namespace tfring {

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaErrorOutOfMemory = 2;
inline constexpr int kCudaErrorNotReady = 600;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventBlockingSync = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr unsigned kCudaIpcLazyPeerAccess = 1;
inline constexpr unsigned kCudaHostPortable = 1;
inline constexpr unsigned kCudaHostDeviceMap = 2;
inline constexpr unsigned kCudaWaitValueGeq = 0;
inline constexpr uint32_t kCudaWaitValue32 = 1;
inline constexpr uint32_t kCudaWriteValue32 = 2;
inline constexpr int kCudaAttributeCapabilityMajor = 75;
inline constexpr int kCudaAttributeCapabilityMinor = 76;

// The CUstreamBatchMemOpParams of these two operations.
struct CudaStreamOperation {
  uint32_t operation;
  CUdeviceptr address;
  uint64_t value;
  uint32_t flags;
  CUdeviceptr used_by_driver = 0;
  uint64_t unused = 0;
};
static_assert(sizeof(CudaStreamOperation) == 48 &&
                  offsetof(CudaStreamOperation, value) == 16 &&
                  offsetof(CudaStreamOperation, flags) == 24,
              "not as in cuda.h");

class CudaDriver {
 public:
  // Returns the process's driver, which is never destroyed.  Unavailable, with
  // the reason, if there is none.
  static absl::StatusOr<const CudaDriver*> Get();

  // A function of the driver.  A call returns a Status with the driver's own
  // name and text for an error.
  template <typename... Parameters>
  class Function {
   public:
    Function(CudaDriver& driver, const char* name)
        : driver_(driver),
          name_(name),
          function_(
              reinterpret_cast<int (*)(Parameters...)>(driver.Find(name))) {}

    absl::Status operator()(Parameters... parameters) const {
      return driver_.Check(function_(parameters...), name_);
    }
    // Returns the raw result, for callers that distinguish results.
    int Result(Parameters... parameters) const {
      return function_(parameters...);
    }

   private:
    const CudaDriver& driver_;
    const char* const name_;
    int (*const function_)(Parameters...);
  };

  // Returns OK for kCudaSuccess.
  absl::Status Check(int result, absl::string_view function) const;

 private:
  explicit CudaDriver(void* library) : library_(library) {}
  void* Find(const char* name);

  void* const library_;
  const char* missing_ = nullptr;  // the first function that was not found

 public:
#define TFRING_CUDA_FUNCTION(name, ...) \
  const Function<__VA_ARGS__> name { *this, #name }
#define TFRING_CUDA_FUNCTION_AS(name, symbol, ...) \
  const Function<__VA_ARGS__> name { *this, symbol }
  TFRING_CUDA_FUNCTION(cuGetErrorName, int, const char**);
  TFRING_CUDA_FUNCTION(cuGetErrorString, int, const char**);
  TFRING_CUDA_FUNCTION(cuInit, unsigned);
  TFRING_CUDA_FUNCTION(cuDriverGetVersion, int*);
  TFRING_CUDA_FUNCTION(cuDeviceGetCount, int*);
  TFRING_CUDA_FUNCTION(cuDeviceGet, CUdevice*, int);
  TFRING_CUDA_FUNCTION(cuDeviceGetName, char*, int, CUdevice);
  TFRING_CUDA_FUNCTION_AS(cuDeviceTotalMem, "cuDeviceTotalMem_v2", size_t*,
                          CUdevice);
  TFRING_CUDA_FUNCTION(cuDeviceGetUuid, CUuuid*, CUdevice);
  TFRING_CUDA_FUNCTION(cuDeviceGetAttribute, int*, int, CUdevice);
  TFRING_CUDA_FUNCTION(cuDevicePrimaryCtxRetain, CUcontext*, CUdevice);
  TFRING_CUDA_FUNCTION_AS(cuDevicePrimaryCtxRelease,
                          "cuDevicePrimaryCtxRelease_v2", CUdevice);
  TFRING_CUDA_FUNCTION(cuDevicePrimaryCtxGetState, CUdevice, unsigned*, int*);
  TFRING_CUDA_FUNCTION(cuCtxGetCurrent, CUcontext*);
  TFRING_CUDA_FUNCTION_AS(cuCtxPushCurrent, "cuCtxPushCurrent_v2", CUcontext);
  TFRING_CUDA_FUNCTION_AS(cuCtxPopCurrent, "cuCtxPopCurrent_v2", CUcontext*);
  TFRING_CUDA_FUNCTION(cuModuleLoadDataEx, CUmodule*, const void*, unsigned,
                       int*, void**);
  TFRING_CUDA_FUNCTION(cuModuleUnload, CUmodule);
  TFRING_CUDA_FUNCTION(cuModuleGetFunction, CUfunction*, CUmodule, const char*);
  TFRING_CUDA_FUNCTION(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned,
                       unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                       void**);
  TFRING_CUDA_FUNCTION(cuCtxGetStreamPriorityRange, int*, int*);
  TFRING_CUDA_FUNCTION(cuStreamCreateWithPriority, CUstream*, unsigned, int);
  TFRING_CUDA_FUNCTION_AS(cuStreamDestroy, "cuStreamDestroy_v2", CUstream);
  TFRING_CUDA_FUNCTION(cuStreamSynchronize, CUstream);
  TFRING_CUDA_FUNCTION(cuStreamWaitEvent, CUstream, CUevent, unsigned);
  TFRING_CUDA_FUNCTION_AS(cuStreamBatchMemOp, "cuStreamBatchMemOp_v2", CUstream,
                          unsigned, CudaStreamOperation*, unsigned);
  TFRING_CUDA_FUNCTION(cuEventCreate, CUevent*, unsigned);
  TFRING_CUDA_FUNCTION_AS(cuEventDestroy, "cuEventDestroy_v2", CUevent);
  TFRING_CUDA_FUNCTION(cuEventRecord, CUevent, CUstream);
  TFRING_CUDA_FUNCTION(cuEventQuery, CUevent);
  TFRING_CUDA_FUNCTION(cuEventSynchronize, CUevent);
  TFRING_CUDA_FUNCTION_AS(cuMemAlloc, "cuMemAlloc_v2", CUdeviceptr*, size_t);
  TFRING_CUDA_FUNCTION_AS(cuMemFree, "cuMemFree_v2", CUdeviceptr);
  TFRING_CUDA_FUNCTION(cuMemHostAlloc, void**, size_t, unsigned);
  TFRING_CUDA_FUNCTION(cuMemFreeHost, void*);
  TFRING_CUDA_FUNCTION_AS(cuMemHostRegister, "cuMemHostRegister_v2", void*,
                          size_t, unsigned);
  TFRING_CUDA_FUNCTION(cuMemHostUnregister, void*);
  TFRING_CUDA_FUNCTION_AS(cuMemHostGetDevicePointer,
                          "cuMemHostGetDevicePointer_v2", CUdeviceptr*, void*,
                          unsigned);
  TFRING_CUDA_FUNCTION_AS(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",
                          CUdeviceptr, const void*, size_t, CUstream);
  TFRING_CUDA_FUNCTION_AS(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", void*,
                          CUdeviceptr, size_t, CUstream);
  TFRING_CUDA_FUNCTION_AS(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",
                          CUdeviceptr, CUdeviceptr, size_t, CUstream);
  TFRING_CUDA_FUNCTION(cuIpcGetMemHandle, CUipcMemHandle*, CUdeviceptr);
  TFRING_CUDA_FUNCTION_AS(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2",
                          CUdeviceptr*, CUipcMemHandle, unsigned);
  TFRING_CUDA_FUNCTION(cuIpcCloseMemHandle, CUdeviceptr);
#undef TFRING_CUDA_FUNCTION
#undef TFRING_CUDA_FUNCTION_AS
};

inline CUdeviceptr DeviceAddress(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}
inline void* DeviceMemory(CUdeviceptr address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it is the driver's number.
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

// A stream in the calling thread's context that does not wait for the null
// stream.  Its priority is the highest: a collective's kernels run before
// backpropagation's kernels that wait for a place on the GPU.
absl::Status CreateStream(const CudaDriver& driver, CUstream* stream);

// Makes a context current on the calling thread for the lifetime of this
// object.
class CudaScope {
 public:
  CudaScope(const CudaDriver& driver, CUcontext context)
      : driver_(driver), status_(driver.cuCtxPushCurrent(context)) {}
  ~CudaScope() {
    CUcontext popped = nullptr;
    if (status_.ok()) driver_.cuCtxPopCurrent.Result(&popped);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  const absl::Status status_;
};

// Makes `context` the calling thread's for the rest of the block, or leaves the
// calling function with the error.
#define TFRING_ENTER_CONTEXT(driver, context) \
  const CudaScope scope(driver, context);     \
  TFRING_RETURN_IF_ERROR(scope.status())

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CUDA_DRIVER_H_
