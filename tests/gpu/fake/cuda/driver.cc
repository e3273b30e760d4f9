// The entry points, with the driver's names and numbers.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/gpu/fake/cuda/entry.h"
#include "tests/gpu/fake/cuda/fake_cuda.h"

using namespace tfring::fake_cuda;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kVersion = 12010;
constexpr int kHighestPriority = -5;
// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

void ReadEnvironment(const char* name, std::atomic<int>& option) {
  const char* const text = std::getenv(name);
  if (text != nullptr) option = std::atoi(text);
}

uint64_t Address(const void* host) { return reinterpret_cast<uint64_t>(host); }

}  // namespace

namespace tfring::fake_cuda {

Options& GetOptions() {
  static auto* const options = [] {
    auto* const made = new Options;
    ReadEnvironment("FAKE_CUDA_DEVICES", made->devices);
    ReadEnvironment("FAKE_CUDA_OWN_GPUS", made->own_gpus);
    ReadEnvironment("FAKE_CUDA_QUEUES", made->queues);
    return made;
  }();
  return *options;
}

Counts& GetCounts() {
  static auto* const counts = new Counts{};
  return *counts;
}

}  // namespace tfring::fake_cuda

// No real driver has these.
extern "C" [[gnu::visibility("default")]] Options* FakeCudaOptions() {
  return &GetOptions();
}
extern "C" [[gnu::visibility("default")]] Counts* FakeCudaCounts() {
  return &GetCounts();
}
extern "C" [[gnu::visibility("default")]] void FakeCudaLose(int device) {
  Lose(device);
}
extern "C" [[gnu::visibility("default")]] void* FakeCudaOnHost(void* memory,
                                                               size_t bytes) {
  return OnHost(Address(memory), bytes);
}

ENTRY cuGetErrorName(int result, const char** name) {
  static const std::map<int, const char*> names = {
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kMisaligned, "CUDA_ERROR_MISALIGNED_ADDRESS"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
      {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"}};
  const auto found = names.find(result);
  *name = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
  return kSuccess;
}
ENTRY cuGetErrorString(int, const char** text) {
  *text = "so says the fake driver";
  return kSuccess;
}

ENTRY cuInit(unsigned) { return kSuccess; }
ENTRY cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
ENTRY cuDeviceGetCount(int* count) {
  *count = GetOptions().devices;
  return kSuccess;
}
ENTRY cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < std::min<int>(GetOptions().devices, kMostDevices)
             ? kSuccess
             : kInvalidDevice;
}
ENTRY cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "fake GPU", length);
  return kSuccess;
}
ENTRY cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{1} << 30;
  return kSuccess;
}
ENTRY cuDeviceGetUuid(char* uuid, int device) {
  const int owner = GetOptions().own_gpus ? getpid() : 0;
  std::memset(uuid, 0, 16);
  std::memcpy(uuid, &device, sizeof(device));
  std::memcpy(uuid + sizeof(device), &owner, sizeof(owner));
  return kSuccess;
}
ENTRY cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case kCapabilityMajor:
      *value = GetOptions().capability / 10;
      break;
    case kCapabilityMinor:
      *value = GetOptions().capability % 10;
      break;
    default:
      *value = 2;
  }
  return kSuccess;
}
ENTRY cuDevicePrimaryCtxRetain(Context** context, int device) {
  return Retain(device, context);
}
ENTRY cuDevicePrimaryCtxRelease_v2(int device) { return Release(device); }
ENTRY cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = IsActive(device) ? 1 : 0;
  return kSuccess;
}
ENTRY cuCtxGetCurrent(Context** context) {
  *context = CurrentContext();
  return kSuccess;
}
ENTRY cuCtxPushCurrent_v2(Context* context) { return Push(context); }
ENTRY cuCtxPopCurrent_v2(Context** context) { return Pop(context); }
ENTRY cuCtxGetDevice(int* device) {
  if (CurrentContext() == nullptr) return kInvalidContext;
  *device = CurrentContext()->device;
  return kSuccess;
}

ENTRY cuCtxSynchronize() {
  RETURN_IF_ERROR(Check());
  WaitUntilAllIdle();
  return Check();
}

// The fake NCCL runs its work by this.
ENTRY cuLaunchHostFunc(void* handle, void (*function)(void*), void* argument) {
  Stream* stream = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  Enqueue(stream, [=] {
    function(argument);
    return kSuccess;
  });
  return kSuccess;
}

ENTRY cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  RETURN_IF_ERROR(Check());
  *lowest = 0;
  *highest = kHighestPriority;
  return kSuccess;
}
ENTRY cuStreamCreateWithPriority(void** stream, unsigned, int priority) {
  RETURN_IF_ERROR(Check());
  const bool is_urgent = priority <= kHighestPriority;
  if (!is_urgent) ++GetCounts().ordinary_streams;
  *stream = NewStream(is_urgent ? kUrgentStream : kOrdinaryStream);
  return kSuccess;
}
ENTRY cuStreamDestroy_v2(void* handle) {
  Stream* stream = nullptr;
  if (CurrentContext() == nullptr) return kInvalidContext;
  RETURN_IF_ERROR(FindStream(handle, &stream));
  Destroy(stream);
  return kSuccess;
}
ENTRY cuStreamSynchronize(void* handle) {
  Stream* stream = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  WaitUntilIdle(stream);
  return Check();
}
ENTRY cuStreamWaitEvent(void* handle, void* awaited, unsigned) {
  Stream* stream = nullptr;
  Event* event = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  RETURN_IF_ERROR(FindEvent(awaited, &event));
  Await(*event, stream);
  return kSuccess;
}

ENTRY cuStreamWaitValue32_v2(void* handle, uint64_t address, uint32_t value,
                             unsigned flags) {
  Stream* stream = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  const auto* const flag = Number(address);
  if (flag == nullptr || flags != 0) return kInvalidValue;
  Await(*flag, value, stream);
  return kSuccess;
}
ENTRY cuStreamWriteValue32_v2(void* handle, uint64_t address, uint32_t value,
                              unsigned flags) {
  Stream* stream = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  auto* const flag = Number(address);
  if (flag == nullptr || flags != 0) return kInvalidValue;
  Write(*flag, value, stream);
  return kSuccess;
}

ENTRY cuEventCreate(void** event, unsigned /*flags*/) {
  RETURN_IF_ERROR(Check());
  *event = NewEvent();
  return kSuccess;
}
ENTRY cuEventDestroy_v2(void* handle) {
  Event* event = nullptr;
  if (CurrentContext() == nullptr) return kInvalidContext;
  RETURN_IF_ERROR(FindEvent(handle, &event));
  Destroy(event);
  return kSuccess;
}
ENTRY cuEventRecord(void* recorded, void* handle) {
  Stream* stream = nullptr;
  Event* event = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  RETURN_IF_ERROR(FindEvent(recorded, &event));
  return Record(*event, stream);
}
ENTRY cuEventQuery(void* handle) {
  Event* event = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindEvent(handle, &event));
  const EventState& state = *event->state;
  return state.done == state.recorded ? kSuccess : kNotReady;
}

ENTRY cuEventSynchronize(void* handle) {
  Event* event = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindEvent(handle, &event));
  WaitUntilDone(*event);
  return Check();
}

ENTRY cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  RETURN_IF_ERROR(Check());
  if (bytes == 0) return kInvalidValue;
  MayWaitUntilAllIdle();
  *address = Allocate(bytes);
  return *address == 0 ? kOutOfMemory : kSuccess;
}
ENTRY cuMemFree_v2(uint64_t address) {
  RETURN_IF_ERROR(Check());
  return Free(address);
}
ENTRY cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  RETURN_IF_ERROR(Check());
  MayWaitUntilAllIdle();
  *memory = AllocatePinned(bytes);
  return kSuccess;
}
ENTRY cuMemFreeHost(void* memory) {
  RETURN_IF_ERROR(Check());
  return FreePinned(memory);
}
ENTRY cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  RETURN_IF_ERROR(Check());
  auto& pins_left = GetOptions().pins_left;
  for (int left = pins_left; left >= 0;) {
    if (left == 0) return kNotSupported;
    if (pins_left.compare_exchange_weak(left, left - 1)) break;
  }
  MayWaitUntilAllIdle();
  return Register(memory, bytes);
}
ENTRY cuMemHostUnregister(void* memory) {
  RETURN_IF_ERROR(Check());
  return Unregister(memory);
}
ENTRY cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned) {
  RETURN_IF_ERROR(Check());
  *address = Address(memory);
  return OnHost(*address, 1) == memory ? kSuccess : kInvalidValue;
}
ENTRY cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  RETURN_IF_ERROR(Check());
  auto& left = GetOptions().exports_left;
  if (left == 0) return kNotSupported;
  if (left > 0) --left;
  return Export(address, *handle) ? kSuccess : kInvalidValue;
}
struct IpcHandle {
  Handle handle;
  char rest[64 - sizeof(Handle)];
};
ENTRY cuIpcOpenMemHandle_v2(uint64_t* address, IpcHandle handle, unsigned) {
  RETURN_IF_ERROR(Check());
  MayWaitUntilAllIdle();
  return Import(handle.handle, *address);
}
ENTRY cuIpcCloseMemHandle(uint64_t address) {
  RETURN_IF_ERROR(Check());
  WaitUntilAllIdle();
  return CloseImported(address) ? kSuccess : kInvalidValue;
}
