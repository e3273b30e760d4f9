// A CUDA driver that uses the host as its GPU.  It replaces libcuda.so.1 on
// machines without one, so that the code for GPUs runs in tests.
//
// GPU memory is host memory, at addresses that only the fake can use.  A stream
// is a thread that runs its tasks later.  Processes share memory by memory
// files.  A kernel is found by its name in the PTX or in the assembled code,
// and its source is compiled for the host.  Tests compare its arithmetic with
// the host's kernels; only the effects of the compiler and of the hardware need
// a real GPU.  The fake is strict where CUDA has undefined behavior or reports
// errors late:
// - A call without a context is an error.  So is a stream, an event or a kernel
//   that belongs to another context or has been destroyed.
// - The GPU reads and writes only its own memory and pinned memory, from the
//   first byte of an access to the last.  Any other copy is an error; any other
//   access of a kernel ends its context, and every later call there fails.
// - The last release of a primary context ends everything in it.
// - A handle that is opened twice is mapped once.  It is an error to open a
//   handle in the process that made it, or to use an unaligned element.  A
//   process that closes another process's memory while it is read crashes.
#ifndef TESTS_GPU_FAKE_CUDA_FAKE_CUDA_H_
#define TESTS_GPU_FAKE_CUDA_FAKE_CUDA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tfring::fake_cuda {

// The behavior of the fake, which a test may change at any time.
struct Options {
  // Every task of a stream starts late by a random time up to this.
  std::atomic<int> delay_us{0};
  // n: every n-th wait of a stream, for an event or a number, is skipped, a bug
  // that tests must detect.  Waits of streams of ordinary priority, which are
  // the framework's, are never skipped.
  std::atomic<int> ignore_waits{0};
  // 1: the null stream runs no task; 2: no stream of the highest priority does.
  std::atomic<int> held{0};
  // 1: handles may be opened in the process that made them, so that ranks may
  // be threads.
  std::atomic<int> open_own{0};
  // 1: there is no IPC, as in some containers.
  std::atomic<int> no_ipc{0};
  // These calls fail after so many have succeeded; -1 is never.
  std::atomic<int> exports_left{-1};   // cuIpcGetMemHandle
  std::atomic<int> pins_left{-1};      // cuMemHostRegister
  std::atomic<int> launches_left{-1};  // cuLaunchKernel
  // The number of GPUs.  The environment variable FAKE_CUDA_DEVICES sets it.
  std::atomic<int> devices{1};
  // 1: each process has GPUs of its own, by their UUIDs.  Also set by
  // FAKE_CUDA_OWN_GPUS.
  std::atomic<int> own_gpus{0};
  // No stream of this GPU runs a task; -1 is none.
  std::atomic<int> held_device{-1};
  // 1: PTX cannot be compiled.
  std::atomic<int> no_compiler{0};
  // The compute capability of all devices; 90 is 9.0.
  std::atomic<int> capability{90};
  // 1: assembled kernels are refused, as by an older driver.
  std::atomic<int> no_code{0};
  // A kernel that reduces this many bytes or more of another process's memory
  // reads zeros, while copies are correct, as on some buses; 0 is never.
  std::atomic<int> blind_kernels{0};
  // n: the streams of a context share n hardware queues, which are assigned in
  // turn.  A task waits for all earlier tasks in its queue, from other streams
  // too, as it may with n CUDA_DEVICE_MAX_CONNECTIONS.  0: each stream has its
  // own.  Also set by FAKE_CUDA_QUEUES.
  std::atomic<int> queues{0};
  // 1: the driver waits for the GPU wherever CUDA may: for all streams of the
  // context when memory is allocated, pinned or opened and when kernels are
  // loaded or unloaded; for the copy's stream when unpinned host memory is
  // copied.  0: it waits only where CUDA always does, to free, unpin and close
  // memory.
  std::atomic<int> waits{0};
  // n: a stream of GPU 0 holds n tasks, and a caller with one more task waits;
  // 0: any number.
  std::atomic<int> depth{0};
};
Options& GetOptions();

// Counts since the process began.
struct Counts {
  std::atomic<int64_t> copied_bytes;  // by cuMemcpyDtoDAsync
  // Memory that was freed while this process had a handle of it open: undefined
  // behavior in CUDA.
  std::atomic<int64_t> freed_while_open;
  // Memory that was left when its context ended.
  std::atomic<int64_t> left_in_context;
  // Reductions of at least 16 bytes with an operand that is not aligned to 16
  // bytes.  A GPU reduces one element at a time there.
  std::atomic<int64_t> slow_reductions;
  // Streams without the highest priority.
  std::atomic<int64_t> ordinary_streams;
  std::atomic<int64_t> loaded_modules;
  std::atomic<int64_t> compiled_modules;  // of these, from PTX
  std::atomic<int64_t> stream_calls;      // that enqueue something, or wait
  std::atomic<int64_t> most_blocks;       // of a grid
  // Numbers that a stream has written where a later one was, perhaps awaited.
  std::atomic<int64_t> numbers_gone_back;
  // Handles that have been opened and not closed.
  std::atomic<int64_t> open_handles;
  // Queues with something to do that is neither held nor waits for an event or
  // a number: without any, the GPU does nothing more by itself.
  std::atomic<int64_t> busy_queues;
  std::atomic<int64_t> waiting_hosts;  // in cuEventSynchronize
  std::atomic<int64_t> longest_delay_us;
  std::atomic<int64_t> tasks;  // that streams have done
};
Counts& GetCounts();

// A queue that waits, while this lives.
struct Resting {
  Resting() { --GetCounts().busy_queues; }
  ~Resting() { ++GetCounts().busy_queues; }
};
struct WaitingHost {
  WaitingHost() { ++GetCounts().waiting_hosts; }
  ~WaitingHost() { --GetCounts().waiting_hosts; }
};

// The driver's numbers.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kMapFailed = 205,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kNoCompiler = 221,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextIsDestroyed = 709,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kMisaligned = 716,
  kLaunchFailed = 719,
  kNotSupported = 801,
};

// ---- contexts.cc ----

inline constexpr int kMostDevices = 16;

struct Context {
  explicit Context(int device) : device(device) {}

  const int device;
  int retained = 0;
  // The result of every later call.
  std::atomic<int> error{0};
};

// The primary context of a device; the last Release ends it.
int Retain(int device, Context** context);
int Release(int device);
bool IsActive(int device);
// The GPU does nothing more, and every call in its context fails.
void Lose(int device);

// The calling thread's.
int Push(Context* context);
int Pop(Context** context);
Context* CurrentContext();  // null if it has none
// The result of any call in it, unless the call has an error of its own.
int Check();

// ---- memory.cc ----

// The content of CUipcMemHandle.
struct Handle {
  uint64_t magic;
  int32_t process;
  int32_t file;
  uint64_t file_number;  // of its file system: descriptors are used again
  uint64_t bytes;
  uint64_t address;  // in the process that made it
};

// Device addresses in the current context; 0 if there is no more memory.
uint64_t Allocate(size_t bytes);
int Free(uint64_t address);
void* AllocatePinned(size_t bytes);
int FreePinned(void* memory);
// Other memory of the host.
int Register(void* memory, size_t bytes);
int Unregister(void* memory);
bool Export(uint64_t address, Handle& handle);
// Sets `address`, if the result is 0.
int Import(const Handle& handle, uint64_t& address);
bool CloseImported(uint64_t address);
// The host's address for an address that the GPU may use for so many bytes;
// null for any other.
std::byte* OnHost(uint64_t address, size_t bytes);
// A number there that streams wait for; null if there can be none.
std::atomic<uint32_t>* Number(uint64_t address);
// Returns true if it is another process's.
bool IsImported(uint64_t address);
// Frees all memory of the context.  REQUIRES: it has no streams.
void EndMemory(const Context* context);

// ---- kernels.cc ----

// The function of that name in the kernels' source, or null.
void* FindKernel(const char* name);
// Calls `kernel` for every thread of the grid.
void RunGrid(unsigned blocks, unsigned threads,
             const std::function<void()>& kernel);

// ---- streams.cc ----

class Stream;
enum StreamKind { kNullStream = 1, kUrgentStream = 2, kOrdinaryStream = 3 };
Stream* NewStream(StreamKind kind);
// Sets `stream` if the result is 0: the stream exists and belongs to the
// current context.  A null handle is the null stream of that context.
int FindStream(void* handle, Stream** stream);
// The stream still runs its enqueued tasks.
void Destroy(Stream* stream);
// Ends all streams of a context with an error, and returns when they have
// ended.
void EndStreams(Context* context);
Context* ContextOf(const Stream* stream);
StreamKind KindOf(const Stream* stream);
// A task returns the error that ends the context, or 0.
void Enqueue(Stream* stream, std::function<int()> task);
void WaitUntilIdle(Stream* stream);
// Waits for all streams of the current context, and for no stream of another
// GPU.
void WaitUntilAllIdle();
// The same, where the driver may wait or not.
void MayWaitUntilAllIdle();

// ---- events.cc ----

struct EventState {
  std::atomic<uint32_t> recorded;  // asked for
  std::atomic<uint32_t> done;      // come
};
struct Event {
  Context* const context;
  const std::shared_ptr<EventState> state = std::make_shared<EventState>();
};
Event* NewEvent();
// Sets `event`, if the result is 0: it exists.
int FindEvent(void* handle, Event** event);
void Destroy(Event* event);

int Record(Event& event, Stream* stream);
void Await(const Event& event, Stream* stream);
// Returns early if its context has an error.
void WaitUntilDone(const Event& event);
// Until `value` is `number` or more, as numbers that wrap round.
void Write(std::atomic<uint32_t>& value, uint32_t number, Stream* stream);
void Await(const std::atomic<uint32_t>& value, uint32_t number, Stream* stream);

}  // namespace tfring::fake_cuda

#endif  // TESTS_GPU_FAKE_CUDA_FAKE_CUDA_H_
