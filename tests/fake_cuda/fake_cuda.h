// A driver of a GPU that is the host: takes the place of libcuda.so.1 where
// there is none, so that the code for GPUs runs in tests.
//
// Memory is the host's, at addresses that only the fake can use; a stream is a
// thread that runs its tasks later; IPC goes from process to process
// by memory files.  A kernel is known by its name in the PTX, and its source is
// compiled for the host: tests hold its arithmetic against the host's kernels,
// and only what a compiler and a GPU make of it is left to a real one.  It is
// strict where CUDA leaves things undefined: a call without a context, a handle
// opened where it was made, an address of an element that is not aligned are
// errors, and to close another process's memory while it is read is a crash.
//
// Options, each also read at the start from the environment as FAKE_CUDA_...:
//   DELAY_US       every task of a stream starts up to this much later
//   IGNORE_WAITS   n: every n-th cuStreamWaitEvent does nothing, the bug that
//                  tests must be able to see
//   HELD           1: the null stream does nothing, 2: no other one does
//   OPEN_OWN       1: handles may be opened in the process that made them, so
//                  that ranks may be threads
//   NO_IPC         1: there is no IPC, as in some containers
//   EXPORTS_LEFT   cuIpcGetMemHandle fails when so many have succeeded; -1 is
//                  never
//   LAUNCHES_LEFT  a launch fails when this many have succeeded; -1 is never
//   DEVICES        how many there are
//   OWN_GPUS       1: each process has GPUs of its own, by their UUIDs
#ifndef TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define TESTS_FAKE_CUDA_FAKE_CUDA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tfring::fake_cuda {

struct Options {
  std::atomic<int> delay_us, ignore_waits, held, open_own, no_ipc, exports_left,
      launches_left, devices, own_gpus;
};
Options& GetOptions();

// Counts since the process began.
struct Counts {
  std::atomic<int64_t> copied_bytes;  // by cuMemcpyDtoDAsync
  // Memory that was freed while a handle of it was open, in this process: CUDA
  // leaves it undefined.
  std::atomic<int64_t> freed_while_open;
  // Reductions of at least 16 bytes whose operands are not all aligned to that:
  // a GPU does those an element at a time.
  std::atomic<int64_t> slow_reductions;
  // Streams whose priority is not the highest.
  std::atomic<int64_t> ordinary_streams;
};
Counts& GetCounts();

// ---- driver.cc ----

// The calling thread's; null if it has none.
void* CurrentContext();

// ---- memory.cc ----

// The content of CUipcMemHandle and CUipcEventHandle.
struct Handle {
  uint64_t magic;
  int32_t process;
  int32_t file;
  uint64_t bytes;
  uint64_t address;  // in the process that made it
};

// Device addresses; 0 if there is no more memory.
uint64_t Allocate(size_t bytes);
bool Free(uint64_t address);
bool Export(uint64_t address, Handle& handle);
// Sets `address`, if the result is 0.
int Import(const Handle& handle, uint64_t& address);
bool CloseImported(uint64_t address);
// The host's address for a device address.  Any other address is the host's
// own, as with pinned memory.
std::byte* OnHost(uint64_t address);

// ---- kernels.cc ----

// The function of that name in the kernels' source, or null.
void* FindKernel(const char* name);
// Calls `kernel` for every thread of the grid.
void RunGrid(unsigned blocks, unsigned threads,
             const std::function<void()>& kernel);

// ---- streams.cc ----

struct EventState {
  std::atomic<uint32_t> recorded;  // asked for
  std::atomic<uint32_t> done;      // come
};
struct Event {
  std::shared_ptr<EventState> state;
  uint64_t memory = 0;  // where the state lies, if other processes may open it
};

class Stream;
enum StreamKind { kNullStream = 1, kOtherStream = 2 };
// In the current context.
Stream* NewStream(StreamKind kind = kOtherStream);
void Delete(Stream* stream);
void Enqueue(Stream* stream, std::function<void()> task);
void WaitUntilIdle(Stream* stream);
// All of the current context: another GPU's are not waited for.
void WaitUntilAllIdle();

void Record(Event& event, Stream* stream);
void Await(const Event& event, Stream* stream);

}  // namespace tfring::fake_cuda

#endif  // TESTS_FAKE_CUDA_FAKE_CUDA_H_
