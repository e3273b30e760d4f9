// The entry points, with the driver's names and numbers.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/cuda_pieces.h"

using namespace tfring::fake_cuda;  // NOLINT(google-build-using-namespace)

#define ENTRY extern "C" [[gnu::visibility("default")]] int

namespace {

using tfring::DataType;

enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidPtx = 218,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kMisaligned = 716,
  kLaunchFailed = 719,
  kNotSupported = 801,
};

constexpr int kVersion = 12010;
constexpr int kHighestPriority = -5;
constexpr unsigned kEventInterprocess = 4, kEventDisableTiming = 2;

int FromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

constexpr int kMostDevices = 16;
// How often each primary context is.
std::array<std::atomic<int>, kMostDevices> retained;

// A context is a device's number, from 1.
thread_local std::vector<void*> contexts;
bool InContext() { return !contexts.empty(); }

// The null stream is the current context's.
Stream* StreamOf(void* stream) {
  if (stream != nullptr) return static_cast<Stream*>(stream);
  static std::mutex mutex;
  static auto* const null_streams = new std::map<void*, Stream*>();
  const std::lock_guard<std::mutex> lock(mutex);
  Stream*& null_stream = (*null_streams)[CurrentContext()];
  if (null_stream == nullptr) null_stream = NewStream(kNullStream);
  return null_stream;
}

uint64_t Address(const void* host) { return reinterpret_cast<uint64_t>(host); }

struct Module {
  std::set<std::string> names;
};

using Reduce = void (*)(void* dst, const void* a, const void* b, int64_t count);
using CopyPieces = void (*)(tfring::CudaPieces table);

struct Function {
  std::string name;
  void* kernel = nullptr;
  bool copies_pieces = false;
  uint64_t from_bytes = 1, to_bytes = 1;  // an element
};

// By its name, "tfring_sum_float32", "tfring_copy_uint8" or
// "tfring_convert_float32_float16", as cuda_kernels.cu has it.
Function Describe(const std::string& name) {
  Function function{name, FindKernel(name.c_str())};
  std::vector<std::string> words;
  std::istringstream stream(name);
  for (std::string word; std::getline(stream, word, '_');) {
    words.push_back(word);
  }
  const std::string& what = words[1];
  function.copies_pieces =
      what == "copy" || what == "scale" || what == "convert";
  for (int type = 0; type <= static_cast<int>(DataType::kBool); ++type) {
    const auto dtype = static_cast<DataType>(type);
    if (words[2] == Name(dtype)) function.from_bytes = SizeInBytes(dtype);
    if (words.back() == Name(dtype)) function.to_bytes = SizeInBytes(dtype);
  }
  return function;
}

int LaunchReduce(const Function& function, void** parameters,
                 std::function<void()>& kernel) {
  uint64_t addresses[3], together = 0;
  for (int i = 0; i < 3; ++i) {
    std::memcpy(&addresses[i], parameters[i], sizeof(addresses[i]));
    if (addresses[i] % function.to_bytes != 0) return kMisaligned;
    together |= addresses[i];
  }
  int64_t count = 0;
  std::memcpy(&count, parameters[3], sizeof(count));
  if (together % 16 != 0 && count * function.to_bytes >= 16) {
    ++GetCounts().slow_reductions;
  }
  kernel = [dst = OnHost(addresses[0]), a = OnHost(addresses[1]),
            b = OnHost(addresses[2]), count,
            reduce = reinterpret_cast<Reduce>(function.kernel)] {
    reduce(dst, a, b, count);
  };
  return kSuccess;
}

int LaunchCopyPieces(const Function& function, void** parameters,
                     std::function<void()>& kernel) {
  tfring::CudaPieces table;
  std::memcpy(&table, parameters[0], sizeof(table));
  for (int64_t i = 0; i < table.count; ++i) {
    tfring::CudaPiece& piece = table.pieces[i];
    const uint64_t from = Address(piece.from), to = Address(piece.to);
    if (from % function.from_bytes != 0 || to % function.to_bytes != 0) {
      return kMisaligned;
    }
    piece.from = OnHost(from);
    piece.to = OnHost(to);
  }
  kernel = [table, copy = reinterpret_cast<CopyPieces>(function.kernel)] {
    copy(table);
  };
  return kSuccess;
}

int Copy(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (!InContext()) return kInvalidContext;
  Enqueue(StreamOf(stream), [to = OnHost(to), from = OnHost(from), bytes] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
  return kSuccess;
}

}  // namespace

namespace tfring::fake_cuda {

Options& GetOptions() {
  static auto* const options =
      new Options{{FromEnvironment("FAKE_CUDA_DELAY_US", 0)},
                  {FromEnvironment("FAKE_CUDA_IGNORE_WAITS", 0)},
                  {FromEnvironment("FAKE_CUDA_HELD", 0)},
                  {FromEnvironment("FAKE_CUDA_OPEN_OWN", 0)},
                  {FromEnvironment("FAKE_CUDA_NO_IPC", 0)},
                  {FromEnvironment("FAKE_CUDA_EXPORTS_LEFT", -1)},
                  {FromEnvironment("FAKE_CUDA_LAUNCHES_LEFT", -1)},
                  {FromEnvironment("FAKE_CUDA_DEVICES", 1)},
                  {FromEnvironment("FAKE_CUDA_OWN_GPUS", 0)}};
  return *options;
}

Counts& GetCounts() {
  static auto* const counts = new Counts{};
  return *counts;
}

void* CurrentContext() { return InContext() ? contexts.back() : nullptr; }

}  // namespace tfring::fake_cuda

// No real driver has these.
extern "C" [[gnu::visibility("default")]] Options* FakeCudaOptions() {
  return &GetOptions();
}
extern "C" [[gnu::visibility("default")]] Counts* FakeCudaCounts() {
  return &GetCounts();
}
extern "C" [[gnu::visibility("default")]] void* FakeCudaOnHost(void* memory) {
  return OnHost(Address(memory));
}

ENTRY cuGetErrorName(int result, const char** name) {
  switch (result) {
    case kInvalidValue:
      return *name = "CUDA_ERROR_INVALID_VALUE", kSuccess;
    case kOutOfMemory:
      return *name = "CUDA_ERROR_OUT_OF_MEMORY", kSuccess;
    case kInvalidContext:
      return *name = "CUDA_ERROR_INVALID_CONTEXT", kSuccess;
    case kMisaligned:
      return *name = "CUDA_ERROR_MISALIGNED_ADDRESS", kSuccess;
    case kLaunchFailed:
      return *name = "CUDA_ERROR_LAUNCH_FAILED", kSuccess;
    case kNotSupported:
      return *name = "CUDA_ERROR_NOT_SUPPORTED", kSuccess;
    default:
      return *name = "CUDA_ERROR_UNKNOWN", kSuccess;
  }
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
ENTRY cuDeviceGetAttribute(int* value, int, int) {
  *value = 2;
  return kSuccess;
}
ENTRY cuDevicePrimaryCtxRetain(void** context, int device) {
  ++retained[device];
  *context = reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
  return kSuccess;
}
ENTRY cuDevicePrimaryCtxRelease_v2(int device) {
  --retained[device];
  return kSuccess;
}
ENTRY cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = retained[device] > 0 ? 1 : 0;
  return kSuccess;
}
ENTRY cuCtxPushCurrent_v2(void* context) {
  contexts.push_back(context);
  return kSuccess;
}
ENTRY cuCtxPopCurrent_v2(void** context) {
  if (!InContext()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

ENTRY cuCtxGetDevice(int* device) {
  if (!InContext()) return kInvalidContext;
  *device = static_cast<int>(reinterpret_cast<uintptr_t>(contexts.back())) - 1;
  return kSuccess;
}

ENTRY cuModuleLoadDataEx(void** module, const void* image, unsigned, int*,
                         void**) {
  if (!InContext()) return kInvalidContext;
  const std::string ptx = static_cast<const char*>(image);
  if (ptx.find(".version 8.1\n.target sm_52\n") == std::string::npos) {
    return kInvalidPtx;
  }
  auto* const loaded = new Module();
  const std::string entry = ".visible .entry ";
  for (size_t at = ptx.find(entry); at != std::string::npos;
       at = ptx.find(entry, at)) {
    at += entry.size();
    loaded->names.insert(ptx.substr(at, ptx.find('(', at) - at));
  }
  *module = loaded;
  return kSuccess;
}
ENTRY cuModuleUnload(void* module) {
  delete static_cast<Module*>(module);
  return kSuccess;
}
// Kept for ever, as there is no call to end its life.
ENTRY cuModuleGetFunction(void** function, void* module, const char* name) {
  if (static_cast<Module*>(module)->names.count(name) == 0) return kNotFound;
  static std::mutex mutex;
  static auto* const functions = new std::map<std::string, Function>();
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = functions->find(name);
  if (found == functions->end()) {
    found = functions->emplace(name, Describe(name)).first;
  }
  *function = &found->second;
  return found->second.kernel == nullptr ? kNotFound : kSuccess;
}

ENTRY cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y,
                     unsigned grid_z, unsigned block_x, unsigned block_y,
                     unsigned block_z, unsigned shared_bytes, void* stream,
                     void** parameters, void** extra) {
  if (!InContext()) return kInvalidContext;
  if (grid_x < 1 || block_x < 1 || block_x > 1024 || grid_y != 1 ||
      grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes != 0 ||
      extra != nullptr) {
    return kInvalidValue;
  }
  auto& left = GetOptions().launches_left;
  if (left == 0) return kLaunchFailed;
  if (left > 0) --left;
  const Function& asked = *static_cast<Function*>(function);
  std::function<void()> kernel;
  const int result = asked.copies_pieces
                         ? LaunchCopyPieces(asked, parameters, kernel)
                         : LaunchReduce(asked, parameters, kernel);
  if (result != kSuccess) return result;
  Enqueue(StreamOf(stream), [=] { RunGrid(grid_x, block_x, kernel); });
  return kSuccess;
}

// The fake NCCL runs its work by this.
ENTRY cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  if (!InContext()) return kInvalidContext;
  Enqueue(StreamOf(stream), [=] { function(argument); });
  return kSuccess;
}

ENTRY cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  if (!InContext()) return kInvalidContext;
  *lowest = 0;
  *highest = kHighestPriority;
  return kSuccess;
}
ENTRY cuStreamCreateWithPriority(void** stream, unsigned, int priority) {
  if (!InContext()) return kInvalidContext;
  if (priority > kHighestPriority) ++GetCounts().ordinary_streams;
  *stream = NewStream();
  return kSuccess;
}
ENTRY cuStreamDestroy_v2(void* stream) {
  Delete(static_cast<Stream*>(stream));
  return kSuccess;
}
ENTRY cuStreamSynchronize(void* stream) {
  WaitUntilIdle(StreamOf(stream));
  return kSuccess;
}
ENTRY cuStreamWaitEvent(void* stream, void* event, unsigned) {
  if (!InContext()) return kInvalidContext;
  Await(*static_cast<Event*>(event), StreamOf(stream));
  return kSuccess;
}

ENTRY cuEventCreate(void** event, unsigned flags) {
  if (!InContext()) return kInvalidContext;
  auto* const created = new Event();
  if (flags & kEventInterprocess) {
    if (!(flags & kEventDisableTiming)) return kInvalidValue;
    created->memory = Allocate(sizeof(EventState));
    auto* const state = new (OnHost(created->memory)) EventState{};
    created->state = {state, [](EventState*) {}};
  } else {
    created->state = std::make_shared<EventState>();
  }
  *event = created;
  return kSuccess;
}
ENTRY cuEventDestroy_v2(void* event) {
  auto* const ended = static_cast<Event*>(event);
  WaitUntilAllIdle();  // of other processes' events, too
  if (ended->memory != 0 && !CloseImported(ended->memory)) {
    Free(ended->memory);
  }
  delete ended;
  return kSuccess;
}
ENTRY cuEventRecord(void* event, void* stream) {
  if (!InContext()) return kInvalidContext;
  Record(*static_cast<Event*>(event), StreamOf(stream));
  return kSuccess;
}
ENTRY cuEventQuery(void* event) {
  const EventState& state = *static_cast<Event*>(event)->state;
  return state.done == state.recorded ? kSuccess : kNotReady;
}

ENTRY cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  if (!InContext()) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  *address = Allocate(bytes);
  return *address == 0 ? kOutOfMemory : kSuccess;
}
ENTRY cuMemFree_v2(uint64_t address) {
  return Free(address) ? kSuccess : kInvalidValue;
}
ENTRY cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (!InContext()) return kInvalidContext;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return kSuccess;
}
ENTRY cuMemFreeHost(void* memory) {
  WaitUntilAllIdle();
  std::free(memory);
  return kSuccess;
}
ENTRY cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes,
                           void* stream) {
  return Copy(to, Address(from), bytes, stream);
}
ENTRY cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes,
                           void* stream) {
  return Copy(Address(to), from, bytes, stream);
}
ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes,
                           void* stream) {
  GetCounts().copied_bytes += static_cast<int64_t>(bytes);
  return Copy(to, from, bytes, stream);
}

ENTRY cuIpcGetMemHandle(Handle* handle, uint64_t address) {
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
  return Import(handle.handle, *address);
}
ENTRY cuIpcCloseMemHandle(uint64_t address) {
  return CloseImported(address) ? kSuccess : kInvalidValue;
}
ENTRY cuIpcGetEventHandle(Handle* handle, void* event) {
  return Export(static_cast<Event*>(event)->memory, *handle) ? kSuccess
                                                             : kInvalidHandle;
}
ENTRY cuIpcOpenEventHandle(void** event, IpcHandle handle) {
  uint64_t memory = 0;
  if (const int result = Import(handle.handle, memory); result != kSuccess) {
    return result;
  }
  *event = new Event{
      {reinterpret_cast<EventState*>(OnHost(memory)), [](EventState*) {}},
      memory};
  return kSuccess;
}
