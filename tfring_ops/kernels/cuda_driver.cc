#include "tfring_ops/kernels/cuda_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
// CUDA 12.1, the version of the kernels' PTX, in the numbers of
// cuDriverGetVersion.
constexpr int kLeastVersion = 12010;

absl::Status CheckVersion(const CudaDriver& driver) {
  int version = 0;
  TFRING_RETURN_IF_ERROR(driver.cuDriverGetVersion(&version));
  if (version >= kLeastVersion) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the GPU's driver serves CUDA ", version / 1000, ".", version % 1000 / 10,
      ", and tfring needs 12.1 or later: install a newer driver"));
}

}  // namespace

absl::StatusOr<const CudaDriver*> CudaDriver::Get() {
  static const auto* const found = new absl::StatusOr<const CudaDriver*>(
      []() -> absl::StatusOr<const CudaDriver*> {
        void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
          return absl::UnavailableError(
              absl::StrCat("no driver of an NVIDIA GPU: ", dlerror()));
        }
        const auto* const driver = new CudaDriver(library);
        if (driver->missing_ != nullptr) {
          return absl::UnavailableError(
              absl::StrCat(kLibrary, " has no ", driver->missing_,
                           ": install a newer driver"));
        }
        if (absl::Status status = driver->cuInit(0); !status.ok()) {
          return absl::UnavailableError(status.message());
        }
        TFRING_RETURN_IF_ERROR(CheckVersion(*driver));
        return driver;
      }());
  return *found;
}

void* CudaDriver::Find(const char* name) {
  void* const function = dlsym(library_, name);
  if (function == nullptr && missing_ == nullptr) missing_ = name;
  return function;
}

absl::Status CreateStream(const CudaDriver& driver, CUstream* stream) {
  int lowest = 0, highest = 0;
  TFRING_RETURN_IF_ERROR(driver.cuCtxGetStreamPriorityRange(&lowest, &highest));
  return driver.cuStreamCreateWithPriority(stream, kCudaStreamNonBlocking,
                                           highest);
}

absl::Status CudaDriver::Check(int result, absl::string_view function) const {
  if (result == kCudaSuccess) return absl::OkStatus();
  const char* name = "an unknown error";
  const char* text = "";
  cuGetErrorName.Result(result, &name);
  cuGetErrorString.Result(result, &text);
  const std::string message =
      absl::StrCat(function, " failed: ", name, " (", result, "): ", text);
  return result == kCudaErrorOutOfMemory ? absl::ResourceExhaustedError(message)
                                         : absl::InternalError(message);
}

}  // namespace tfring
