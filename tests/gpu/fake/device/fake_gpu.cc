// For tests: a device of type "GPU" for a TensorFlow that has no CUDA, with the
// memory, the streams and the events of the fake driver in tests/gpu/fake/cuda.
//
// TensorFlow makes four streams for a GPU: one that computes, and one each for
// copies to the device, to the host, and between devices.  It orders them by
// events, as on NVIDIA GPUs; unordered work may run at any time.  It has no
// platform stream for such devices, so kernels get the null stream.  The null
// stream is therefore the compute stream, which TensorFlow makes first.  Copies
// without a stream wait for no stream, as on NVIDIA GPUs, where the null stream
// does not wait for TensorFlow's streams.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_status.h"
#include "tests/gpu/fake/device/driver.h"

struct SP_Stream_st {
  CUstream stream;
};
struct SP_Event_st {
  CUevent event = nullptr;
};
struct SP_Timer_st {};

namespace {

using namespace tfring::fake_gpu;  // NOLINT(google-build-using-namespace)

constexpr unsigned kNonBlocking = 1;
constexpr unsigned kDisableTiming = 2;
constexpr int kNotReady = 600;

void Report(int result, TF_Status* status) {
  TF_SetStatus(status, result == 0 ? TF_OK : TF_INTERNAL,
               result == 0 ? "" : "the fake GPU's driver reports an error");
}

CUdeviceptr Address(const SP_DeviceMemoryBase* memory) {
  return reinterpret_cast<CUdeviceptr>(memory->opaque);
}

// ---- Memory ----

void SetMemory(SP_StreamExecutor* executor) {
  executor->allocate = [](const SP_Device* device, uint64_t bytes, int64_t,
                          SP_DeviceMemoryBase* memory) {
    UseContext(device->ordinal);
    CUdeviceptr address = 0;
    memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    const bool got = cuMemAlloc_v2(&address, bytes) == 0;
    memory->opaque = got ? reinterpret_cast<void*>(address) : nullptr;
    memory->size = got ? bytes : 0;
  };
  executor->deallocate = [](const SP_Device* device,
                            SP_DeviceMemoryBase* memory) {
    UseContext(device->ordinal);
    cuMemFree_v2(Address(memory));
  };
  executor->host_memory_allocate = [](const SP_Device* device, uint64_t bytes) {
    UseContext(device->ordinal);
    void* memory = nullptr;
    cuMemHostAlloc(&memory, bytes, 0);
    return memory;
  };
  executor->host_memory_deallocate = [](const SP_Device* device, void* memory) {
    UseContext(device->ordinal);
    cuMemFreeHost(memory);
  };
  executor->unified_memory_allocate = [](const SP_Device*, uint64_t) -> void* {
    return nullptr;
  };
  executor->unified_memory_deallocate = [](const SP_Device*, void*) {};
  executor->get_allocator_stats =
      [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  executor->device_memory_usage = [](const SP_Device*, int64_t* free,
                                     int64_t* total) -> TF_Bool {
    *free = *total = int64_t{1} << 30;
    return 1;
  };
}

// ---- Streams, events and timers ----

int NewStream(CUstream* stream) {
  return cuStreamCreateWithPriority(stream, kNonBlocking, /*priority=*/0);
}

// The stream that computes is the first of a device.
int CreateStream(int ordinal, CUstream* stream) {
  static std::mutex mutex;
  static auto* const have_one = new std::set<int>();
  const std::lock_guard<std::mutex> lock(mutex);
  *stream = kComputes;
  return have_one->insert(ordinal).second ? 0 : NewStream(stream);
}

// Makes all later work of `stream` wait for all earlier work of `other`.
int Follow(CUstream stream, CUstream other) {
  CUevent event = nullptr;
  if (const int error = cuEventCreate(&event, kDisableTiming)) return error;
  int result = cuEventRecord(event, other);
  if (result == 0) result = cuStreamWaitEvent(stream, event, 0);
  cuEventDestroy_v2(event);
  return result;
}

struct Callback {
  SE_StatusCallbackFn call;
  void* argument;
};

void CallBack(void* argument) {
  const std::unique_ptr<Callback> callback(static_cast<Callback*>(argument));
  TF_Status* const status = TF_NewStatus();
  callback->call(callback->argument, status);
  TF_DeleteStatus(status);
}

void SetStreams(SP_StreamExecutor* executor) {
  executor->create_stream = [](const SP_Device* device, SP_Stream* stream,
                               TF_Status* status) {
    UseContext(device->ordinal);
    *stream = new SP_Stream_st{kComputes};
    Report(CreateStream(device->ordinal, &(*stream)->stream), status);
  };
  executor->destroy_stream = [](const SP_Device* device, SP_Stream stream) {
    UseContext(device->ordinal);
    if (stream->stream != kComputes) cuStreamDestroy_v2(stream->stream);
    delete stream;
  };
  executor->create_stream_dependency = [](const SP_Device* device,
                                          SP_Stream dependent, SP_Stream other,
                                          TF_Status* status) {
    UseContext(device->ordinal);
    Report(Follow(dependent->stream, other->stream), status);
  };
  executor->get_stream_status = [](const SP_Device*, SP_Stream,
                                   TF_Status* status) { Report(0, status); };
  executor->block_host_until_done = [](const SP_Device* device,
                                       SP_Stream stream, TF_Status* status) {
    UseContext(device->ordinal);
    Report(cuStreamSynchronize(stream->stream), status);
  };
  executor->synchronize_all_activity = [](const SP_Device* device,
                                          TF_Status* status) {
    UseContext(device->ordinal);
    Report(cuCtxSynchronize(), status);
  };
  executor->host_callback = [](const SP_Device* device, SP_Stream stream,
                               SE_StatusCallbackFn call,
                               void* argument) -> TF_Bool {
    UseContext(device->ordinal);
    auto* const callback = new Callback{call, argument};
    return cuLaunchHostFunc(stream->stream, CallBack, callback) == 0 ? 1 : 0;
  };
  executor->create_timer = [](const SP_Device*, SP_Timer* timer,
                              TF_Status* status) {
    *timer = new SP_Timer_st;
    Report(0, status);
  };
  executor->destroy_timer = [](const SP_Device*, SP_Timer timer) {
    delete timer;
  };
  executor->start_timer = [](const SP_Device*, SP_Stream, SP_Timer,
                             TF_Status* status) { Report(0, status); };
  executor->stop_timer = executor->start_timer;
}

void SetEvents(SP_StreamExecutor* executor) {
  executor->create_event = [](const SP_Device* device, SP_Event* event,
                              TF_Status* status) {
    UseContext(device->ordinal);
    *event = new SP_Event_st;
    Report(cuEventCreate(&(*event)->event, kDisableTiming), status);
  };
  executor->destroy_event = [](const SP_Device* device, SP_Event event) {
    UseContext(device->ordinal);
    cuEventDestroy_v2(event->event);
    delete event;
  };
  executor->get_event_status = [](const SP_Device* device, SP_Event event) {
    UseContext(device->ordinal);
    const int result = cuEventQuery(event->event);
    if (result == 0) return SE_EVENT_COMPLETE;
    return result == kNotReady ? SE_EVENT_PENDING : SE_EVENT_ERROR;
  };
  executor->record_event = [](const SP_Device* device, SP_Stream stream,
                              SP_Event event, TF_Status* status) {
    UseContext(device->ordinal);
    Report(cuEventRecord(event->event, stream->stream), status);
  };
  executor->wait_for_event = [](const SP_Device* device, SP_Stream stream,
                                SP_Event event, TF_Status* status) {
    UseContext(device->ordinal);
    Report(cuStreamWaitEvent(stream->stream, event->event, 0), status);
  };
  executor->block_host_for_event = [](const SP_Device* device, SP_Event event,
                                      TF_Status* status) {
    UseContext(device->ordinal);
    while (cuEventQuery(event->event) == kNotReady) std::this_thread::yield();
    Report(0, status);
  };
}

// ---- Copies ----

// Returns the stream for a device's copies that name no stream.
int SynchronousStream(int ordinal, CUstream* stream) {
  static std::mutex mutex;
  static auto* const streams = new std::map<int, CUstream>();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = streams->try_emplace(ordinal, nullptr);
  const int result = is_new ? NewStream(&found->second) : 0;
  *stream = found->second;
  return result;
}

template <auto copy, typename To, typename From>
void CopyAsync(const SP_Device* device, SP_Stream stream, To to, From from,
               uint64_t bytes, TF_Status* status) {
  UseContext(device->ordinal);
  Report(copy(to, from, bytes, stream->stream), status);
}

template <auto copy, typename To, typename From>
void CopyNow(const SP_Device* device, To to, From from, uint64_t bytes,
             TF_Status* status) {
  UseContext(device->ordinal);
  CUstream stream = nullptr;
  int result = SynchronousStream(device->ordinal, &stream);
  if (result == 0) result = copy(to, from, bytes, stream);
  Report(result == 0 ? cuStreamSynchronize(stream) : result, status);
}

template <typename T>
void Fill(const SP_Device* device, SP_Stream stream,
          SP_DeviceMemoryBase* location, T pattern, uint64_t bytes,
          TF_Status* status) {
  UseContext(device->ordinal);
  const std::vector<T> filled(bytes / sizeof(T), pattern);
  const int result = cuMemcpyHtoDAsync_v2(Address(location), filled.data(),
                                          bytes, stream->stream);
  Report(result == 0 ? cuStreamSynchronize(stream->stream) : result, status);
}

void SetCopies(SP_StreamExecutor* executor) {
  executor->memcpy_dtoh = [](const SP_Device* device, SP_Stream stream,
                             void* to, const SP_DeviceMemoryBase* from,
                             uint64_t bytes, TF_Status* status) {
    CopyAsync<cuMemcpyDtoHAsync_v2>(device, stream, to, Address(from), bytes,
                                    status);
  };
  executor->memcpy_htod = [](const SP_Device* device, SP_Stream stream,
                             SP_DeviceMemoryBase* to, const void* from,
                             uint64_t bytes, TF_Status* status) {
    CopyAsync<cuMemcpyHtoDAsync_v2>(device, stream, Address(to), from, bytes,
                                    status);
  };
  executor->memcpy_dtod =
      [](const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
         const SP_DeviceMemoryBase* from, uint64_t bytes, TF_Status* status) {
        CopyAsync<cuMemcpyDtoDAsync_v2>(device, stream, Address(to),
                                        Address(from), bytes, status);
      };
  executor->sync_memcpy_dtoh = [](const SP_Device* device, void* to,
                                  const SP_DeviceMemoryBase* from,
                                  uint64_t bytes, TF_Status* status) {
    CopyNow<cuMemcpyDtoHAsync_v2>(device, to, Address(from), bytes, status);
  };
  executor->sync_memcpy_htod = [](const SP_Device* device,
                                  SP_DeviceMemoryBase* to, const void* from,
                                  uint64_t bytes, TF_Status* status) {
    CopyNow<cuMemcpyHtoDAsync_v2>(device, Address(to), from, bytes, status);
  };
  executor->sync_memcpy_dtod =
      [](const SP_Device* device, SP_DeviceMemoryBase* to,
         const SP_DeviceMemoryBase* from, uint64_t bytes, TF_Status* status) {
        CopyNow<cuMemcpyDtoDAsync_v2>(device, Address(to), Address(from), bytes,
                                      status);
      };
  executor->mem_zero = [](const SP_Device* device, SP_Stream stream,
                          SP_DeviceMemoryBase* location, uint64_t bytes,
                          TF_Status* status) {
    Fill<uint8_t>(device, stream, location, 0, bytes, status);
  };
  executor->memset = [](const SP_Device* device, SP_Stream stream,
                        SP_DeviceMemoryBase* location, uint8_t pattern,
                        uint64_t bytes, TF_Status* status) {
    Fill(device, stream, location, pattern, bytes, status);
  };
  executor->memset32 = [](const SP_Device* device, SP_Stream stream,
                          SP_DeviceMemoryBase* location, uint32_t pattern,
                          uint64_t bytes, TF_Status* status) {
    Fill(device, stream, location, pattern, bytes, status);
  };
}

// ---- The device ----

void CreateStreamExecutor(const SP_Platform*,
                          SE_CreateStreamExecutorParams* params,
                          TF_Status* status) {
  SP_StreamExecutor* const executor = params->stream_executor;
  executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  SetMemory(executor);
  SetStreams(executor);
  SetEvents(executor);
  SetCopies(executor);
  Report(0, status);
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params,
                  TF_Status* status) {
  SP_Device* const device = params->device;
  device->struct_size = SP_DEVICE_STRUCT_SIZE;
  device->ordinal = params->ordinal;
  device->hardware_name = "fake";
  device->device_vendor = "tests/gpu/fake/cuda";
  device->pci_bus_id = "0000:00:00.0";
  Report(0, status);
}

void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params,
                     TF_Status* status) {
  SP_DeviceFns* const fns = params->device_fns;
  fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  fns->get_numa_node = [](const SP_Device*) -> int32_t { return -1; };
  fns->get_memory_bandwidth = [](const SP_Device*) -> int64_t { return -1; };
  fns->get_gflops = [](const SP_Device*) -> double { return -1; };
  Report(0, status);
}

void SetPlatformFns(SP_PlatformFns* fns) {
  fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns->get_device_count = [](const SP_Platform*, int* count,
                             TF_Status* status) {
    Report(cuDeviceGetCount(count), status);
  };
  fns->create_device = CreateDevice;
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = CreateDeviceFns;
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = CreateStreamExecutor;
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* timers,
                             TF_Status* status) {
    timers->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    timers->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
    Report(0, status);
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
}

}  // namespace

// TensorFlow calls it when it loads the library.
extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(
    SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  SP_Platform* const platform = params->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "FAKE_CUDA";
  platform->type = "GPU";
  platform->supports_unified_memory = 0;
  platform->use_bfc_allocator = 1;
  platform->force_memory_growth = 1;
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  SetPlatformFns(params->platform_fns);
  Report(cuInit(0), status);
}
