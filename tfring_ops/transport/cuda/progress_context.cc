#include "tfring_ops/transport/cuda/progress_context.h"

#include <atomic>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda_driver.h"

namespace tfring {
namespace {

std::atomic<CUcontext> shared_context{nullptr};

}  // namespace

absl::Status ShareProgressContext(int ordinal) {
  if (shared_context.load() != nullptr) return absl::OkStatus();
  TFRING_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  CUdevice device = 0;
  CUcontext context = nullptr;
  TFRING_RETURN_IF_ERROR(driver->cuDeviceGet(&device, ordinal));
  TFRING_RETURN_IF_ERROR(driver->cuDevicePrimaryCtxRetain(&context, device));
  shared_context.store(context);
  return absl::OkStatus();
}

void EnterProgressContext() {
  const CUcontext context = shared_context.load(std::memory_order_acquire);
  if (context == nullptr) return;
  const CudaDriver& driver = **CudaDriver::Get();
  // Ask each time: a context may be current for one call only.
  CUcontext current = nullptr;
  driver.cuCtxGetCurrent.Result(&current);
  if (current == nullptr) driver.cuCtxPushCurrent.Result(context);
}

}  // namespace tfring
