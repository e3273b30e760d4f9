#include "tfring_ops/kernels/cuda.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/kernels/cuda_kernels.h"

namespace tfring {
namespace {

// Returns the driver, without which no event can exist.
const CudaDriver& Driver() { return **CudaDriver::Get(); }

// Returns the primary context of a GPU, which is never released.
absl::StatusOr<CUcontext> ContextOf(int ordinal) {
  static auto& mutex = *new std::mutex;
  static auto& contexts = *new std::map<int, CUcontext>;
  TFRING_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = contexts.find(ordinal);
  if (found != contexts.end()) return found->second;
  CUdevice device = 0;
  CUcontext context = nullptr;
  TFRING_RETURN_IF_ERROR(driver->cuDeviceGet(&device, ordinal));
  TFRING_RETURN_IF_ERROR(driver->cuDevicePrimaryCtxRetain(&context, device));
  contexts.emplace(ordinal, context);
  return context;
}

}  // namespace

absl::StatusOr<std::string> CudaDriverVersion() {
  TFRING_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  int version = 0;
  TFRING_RETURN_IF_ERROR(driver->cuDriverGetVersion(&version));
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::StatusOr<int> CudaDeviceCount() {
  TFRING_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  int count = 0;
  TFRING_RETURN_IF_ERROR(driver->cuDeviceGetCount(&count));
  return count;
}

absl::StatusOr<int> CudaDeviceInUse() {
  TFRING_ASSIGN_OR_RETURN(const int count, CudaDeviceCount());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    unsigned flags = 0;
    int active = 0;
    TFRING_RETURN_IF_ERROR(Driver().cuDeviceGet(&device, ordinal));
    TFRING_RETURN_IF_ERROR(
        Driver().cuDevicePrimaryCtxGetState(device, &flags, &active));
    if (active != 0) return ordinal;
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::ForOrdinal(
    int ordinal) {
  TFRING_ASSIGN_OR_RETURN(const int count, CudaDeviceCount());
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(
        absl::StrCat("no GPU ", ordinal, ": this process sees ", count,
                     ", numbered from 0; CUDA_VISIBLE_DEVICES says which"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(Driver(), ordinal));
  TFRING_RETURN_IF_ERROR(device->Open());
  return device;
}

CudaDevice::CudaDevice(const CudaDriver& driver, int ordinal)
    : driver_(driver), ordinal_(ordinal) {}

absl::Status CudaDevice::Open() {
  TFRING_RETURN_IF_ERROR(driver_.cuDeviceGet(&device_, ordinal_));
  std::array<char, 256> name{};
  TFRING_RETURN_IF_ERROR(
      driver_.cuDeviceGetName(name.data(), name.size() - 1, device_));
  name_ = name.data();
  size_t bytes = 0;
  TFRING_RETURN_IF_ERROR(driver_.cuDeviceTotalMem(&bytes, device_));
  memory_bytes_ = static_cast<int64_t>(bytes);
  CUuuid uuid{};
  TFRING_RETURN_IF_ERROR(driver_.cuDeviceGetUuid(&uuid, device_));
  std::copy_n(uuid.bytes, uuid_.size(), uuid_.begin());
  int major = 0, minor = 0;
  TFRING_RETURN_IF_ERROR(driver_.cuDeviceGetAttribute(
      &major, kCudaAttributeCapabilityMajor, device_));
  TFRING_RETURN_IF_ERROR(driver_.cuDeviceGetAttribute(
      &minor, kCudaAttributeCapabilityMinor, device_));
  // TensorFlow uses the primary context, too.
  TFRING_RETURN_IF_ERROR(driver_.cuDevicePrimaryCtxRetain(&context_, device_));
  TFRING_ENTER_CONTEXT(driver_, context_);
  TFRING_RETURN_IF_ERROR(CreateStream(driver_, &stream_));
  TFRING_ASSIGN_OR_RETURN(
      kernels_,
      CudaKernels::Load(driver_, context_, stream_, 10 * major + minor));
  return absl::OkStatus();
}

// At the end of a process the driver may be unloaded already; its errors are
// ignored.
CudaDevice::~CudaDevice() {
  if (kernels_ != nullptr && kernels_->is_abandoned()) {
    KeepForever(std::move(kernels_));
    return;
  }
  kernels_.reset();
  if (context_ == nullptr) return;
  {
    const CudaScope scope(driver_, context_);
    if (stream_ != nullptr) driver_.cuStreamDestroy.Result(stream_);
  }
  driver_.cuDevicePrimaryCtxRelease.Result(device_);
}

const Kernels& CudaDevice::kernels() const { return *kernels_; }

absl::Status CudaDevice::Upload(void* device, const void* host,
                                int64_t bytes) const {
  TFRING_ENTER_CONTEXT(driver_, context_);
  TFRING_RETURN_IF_ERROR(
      driver_.cuMemcpyHtoDAsync(DeviceAddress(device), host, bytes, stream_));
  return driver_.cuStreamSynchronize(stream_);
}

absl::Status CudaDevice::Download(void* host, const void* device,
                                  int64_t bytes) const {
  TFRING_ENTER_CONTEXT(driver_, context_);
  TFRING_RETURN_IF_ERROR(
      driver_.cuMemcpyDtoHAsync(host, DeviceAddress(device), bytes, stream_));
  return driver_.cuStreamSynchronize(stream_);
}

absl::Status CudaDevice::TryExport() const {
  TFRING_ENTER_CONTEXT(driver_, context_);
  CUdeviceptr memory = 0;
  TFRING_RETURN_IF_ERROR(driver_.cuMemAlloc(&memory, 1));
  CUipcMemHandle handle{};
  const absl::Status status = driver_.cuIpcGetMemHandle(&handle, memory);
  driver_.cuMemFree.Result(memory);
  return status;
}

absl::Status CudaDevice::Finish() const {
  TFRING_ENTER_CONTEXT(driver_, context_);
  TFRING_RETURN_IF_ERROR(kernels_->Synchronize());
  return driver_.cuStreamSynchronize(stream_);
}

void CudaDevice::WaitBy(std::function<absl::Status()> wait) const {
  kernels_->WaitBy(std::move(wait));
}
void CudaDevice::Abandon() const { kernels_->Abandon(); }

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Create(
    const CudaDevice& device) {
  return CreateIn(device.context());
}

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::CreateOn(int ordinal) {
  TFRING_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(ordinal));
  return CreateIn(context);
}

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::CreateIn(
    CUctx_st* context) {
  TFRING_ENTER_CONTEXT(Driver(), context);
  CUevent event = nullptr;
  TFRING_RETURN_IF_ERROR(Driver().cuEventCreate(
      &event, kCudaEventBlockingSync | kCudaEventDisableTiming));
  return std::unique_ptr<CudaEvent>(new CudaEvent(context, event));
}

CudaEvent::~CudaEvent() {
  const CudaScope scope(Driver(), context_);
  Driver().cuEventDestroy.Result(event_);
}

absl::Status CudaEvent::Record(void* stream) {
  TFRING_ENTER_CONTEXT(Driver(), context_);
  return Driver().cuEventRecord(event_, static_cast<CUstream>(stream));
}

absl::Status CudaEvent::Await(void* stream) const {
  TFRING_ENTER_CONTEXT(Driver(), context_);
  return Driver().cuStreamWaitEvent(static_cast<CUstream>(stream), event_, 0);
}

absl::StatusOr<bool> CudaEvent::Done() const {
  TFRING_ENTER_CONTEXT(Driver(), context_);
  const int result = Driver().cuEventQuery.Result(event_);
  if (result == kCudaErrorNotReady) return false;
  TFRING_RETURN_IF_ERROR(Driver().Check(result, "cuEventQuery"));
  return true;
}

absl::Status CudaEvent::Wait() const {
  TFRING_ENTER_CONTEXT(Driver(), context_);
  return Driver().cuEventSynchronize(event_);
}

absl::StatusOr<std::unique_ptr<CudaCopyStream>> CudaCopyStream::CreateOn(
    int ordinal) {
  TFRING_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(ordinal));
  TFRING_ENTER_CONTEXT(Driver(), context);
  CUstream stream = nullptr;
  TFRING_RETURN_IF_ERROR(CreateStream(Driver(), &stream));
  return std::unique_ptr<CudaCopyStream>(new CudaCopyStream(context, stream));
}

CudaCopyStream::~CudaCopyStream() {
  const CudaScope scope(Driver(), context_);
  Driver().cuStreamDestroy.Result(stream_);
}

absl::Status CudaCopyStream::Upload(void* device, const void* pinned,
                                    int64_t bytes) const {
  TFRING_ENTER_CONTEXT(Driver(), context_);
  return Driver().cuMemcpyHtoDAsync(DeviceAddress(device), pinned, bytes,
                                    stream_);
}

absl::Status CudaCopyStream::Download(void* pinned, const void* device,
                                      int64_t bytes) const {
  TFRING_ENTER_CONTEXT(Driver(), context_);
  return Driver().cuMemcpyDtoHAsync(pinned, DeviceAddress(device), bytes,
                                    stream_);
}

absl::StatusOr<void*> AllocatePinned(int ordinal, int64_t bytes) {
  TFRING_ASSIGN_OR_RETURN(const CUcontext context, ContextOf(ordinal));
  TFRING_ENTER_CONTEXT(Driver(), context);
  void* memory = nullptr;
  TFRING_RETURN_IF_ERROR(
      Driver().cuMemHostAlloc(&memory, bytes, kCudaHostPortable));
  return memory;
}

void FreePinned(int ordinal, void* memory) {
  const absl::StatusOr<CUcontext> context = ContextOf(ordinal);
  if (!context.ok()) return;
  const CudaScope scope(Driver(), *context);
  Driver().cuMemFreeHost.Result(memory);
}

}  // namespace tfring
