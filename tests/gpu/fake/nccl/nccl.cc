// The entry points, with NCCL's names and numbers.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/gpu/fake/nccl/fake_nccl.h"
#include "tests/gpu/fake/nccl/meeting.h"
#include "tfring_ops/base/types.h"

using namespace tfring::fake_nccl;  // NOLINT(google-build-using-namespace)

#define ENTRY extern "C" [[gnu::visibility("default")]] int

namespace {

using tfring::DataType;
using tfring::ReduceOp;

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// Behind the numbers of ncclRedOp_t.
constexpr int kMove = 4;

Options& GetOptions() {
  static auto* const options = new Options;
  return *options;
}

thread_local const char* last_error = "";
int Fail(Result result, const char* text) {
  last_error = text;
  return result;
}

// The fake driver, which is loaded.
template <typename Function>
Function Driver(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function>(dlsym(driver, name));
}
// Memory that is not the GPU's from its first byte to its last is null, and a
// crash.
std::byte* OnHost(const void* memory, size_t bytes) {
  static const auto translate =
      Driver<void* (*)(void*, size_t)>("FakeCudaOnHost");
  return static_cast<std::byte*>(translate(const_cast<void*>(memory), bytes));
}
bool InContext(int& device) {
  static const auto get = Driver<int (*)(int*)>("cuCtxGetDevice");
  return get(&device) == 0;
}

// By the number of an ncclDataType_t.
constexpr DataType kTypes[] = {DataType::kInt8,    DataType::kUint8,
                               DataType::kInt32,   DataType::kUint32,
                               DataType::kInt64,   DataType::kUint64,
                               DataType::kFloat16, DataType::kFloat32,
                               DataType::kFloat64, DataType::kBfloat16};
// By the number of an ncclRedOp_t.
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax,
                             ReduceOp::kMin};

// The elements of all ranks, brought together at one of them or at all.
struct Part {
  const void* input;
  void* output;
  size_t count;
  int type;
  int op;    // kMove: those of the root
  int root;  // -1: at all
};

struct Collective {
  void* stream;
  std::vector<Part> parts;
};

}  // namespace

struct ncclComm {
  Meeting* meeting;
  int rank;
  int device;
  uint64_t number;  // the same on all ranks
  bool connected = false;
  std::atomic<int> async_error{kSuccess};
  std::atomic<const char*> reason{"so says the fake NCCL"};
  uint64_t launches = 0;
  std::vector<Collective> asked = {};  // not yet on a stream
  int looks = 0;                       // at whether they are
  void* stream = nullptr;              // that was used last
  std::atomic<bool> ends{false};
};

namespace {

using Comm = ncclComm;

// A GPU of this process, and its communicators.
class Gpu {
 public:
  static Gpu& Of(int device) {
    static auto* const gpus = new std::array<Gpu, 64>;
    return (*gpus)[device];
  }

  void Add(const Comm& comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    launches_[comm.number] = 0;
  }
  void Remove(const Comm& comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    launches_.erase(comm.number);
  }

  // The next collective of `comm`, which is behind all that are here.
  void Launch(Comm& comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    AllBefore before{};
    size_t count = 0;
    for (const auto& [number, launches] : launches_) {
      if (number == comm.number || count + 1 == before.size()) continue;
      before[count++] = {number, launches};
    }
    comm.meeting->Launch(comm.rank, before);
    ++launches_[comm.number];
  }

  // Has the whole of it, unless `comm` ends before.
  void Begin(const Comm& comm) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (working_ != nullptr && !comm.ends) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (!comm.ends) working_ = &comm;
  }
  void End(const Comm& comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (working_ == &comm) working_ = nullptr;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, uint64_t> launches_;  // by communicator
  const Comm* working_ = nullptr;
};

// Each rank shows a block at a time, and takes the blocks that it needs.
void Run(Comm& comm, const Part& part) {
  tfring::VisitType(kTypes[part.type], [&](auto type) {
    using T = decltype(type);
    Meeting& meeting = *comm.meeting;
    const size_t most = kSlotBytes / sizeof(T);
    // Translated where it is used: a pointer that is not used may be invalid.
    const auto at = [&](const void* memory, size_t element) {
      return reinterpret_cast<T*>(OnHost(memory, part.count * sizeof(T))) +
             element;
    };
    for (size_t first = 0; first < part.count; first += most) {
      const size_t count = std::min(most, part.count - first);
      if (part.op != kMove || part.root == comm.rank) {
        std::memcpy(meeting.slot(comm.rank), at(part.input, first),
                    count * sizeof(T));
      }
      if (!meeting.Meet(comm.rank, comm.ends)) return;
      const auto of_rank = [&](int rank) {
        return reinterpret_cast<const T*>(meeting.slot(rank));
      };
      if (part.op == kMove) {
        std::memcpy(at(part.output, first), of_rank(part.root),
                    count * sizeof(T));
      } else if (part.root < 0 || part.root == comm.rank) {
        T* const output = at(part.output, first);
        for (size_t i = 0; i < count; ++i) {
          T whole = of_rank(0)[i];
          for (int rank = 1; rank < meeting.size(); ++rank) {
            whole = tfring::Reduced(kOps[part.op], whole, of_rank(rank)[i]);
          }
          output[i] = whole;
        }
      }
      if (!meeting.Meet(comm.rank, comm.ends)) return;
    }
  });
}

struct Task {
  Comm* comm;
  uint64_t launch;
  std::vector<Part> parts;
};

void RunTask(void* argument) {
  const auto* const task = static_cast<Task*>(argument);
  Comm& comm = *task->comm;
  Options& options = GetOptions();
  if (options.lost == comm.rank || options.async_error == comm.rank) {
    while (!comm.ends) std::this_thread::yield();
  }
  Gpu& gpu = Gpu::Of(comm.device);
  gpu.Begin(comm);
  ++options.begun;
  if (comm.meeting->OrdersDiffer(task->launch, comm.ends) &&
      options.any_order == 0) {
    comm.reason = "two ranks have launched in different orders";
    comm.async_error = kInvalidUsage;
  }
  for (const Part& part : task->parts) {
    if (!comm.ends) Run(comm, part);
  }
  gpu.End(comm);
  delete task;
}

void PutOnStreams(Comm& comm) {
  static const auto launch =
      Driver<int (*)(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
  for (Collective& collective : comm.asked) {
    comm.stream = collective.stream;
    Gpu::Of(comm.device).Launch(comm);
    launch(collective.stream, RunTask,
           new Task{&comm, comm.launches++, std::move(collective.parts)});
    ++GetOptions().launched;
  }
  comm.asked.clear();
  comm.looks = 0;
}

thread_local int groups = 0;
thread_local std::vector<std::pair<Comm*, Collective>> grouped;

int EndGroup() {
  if (--groups > 0) return kSuccess;
  bool busy = false;
  for (auto& [comm, collective] : std::exchange(grouped, {})) {
    comm->asked.push_back(std::move(collective));
    if (GetOptions().async_error == comm->rank) {
      comm->async_error = kRemoteError;
    }
    busy = true;
  }
  return busy ? kInProgress : kSuccess;
}

int Ask(Comm* comm, void* stream, std::vector<Part> parts) {
  int device = 0;
  if (!InContext(device)) return Fail(kUnhandledCudaError, "no context");
  if (comm == nullptr || !comm->connected || !comm->asked.empty()) {
    return Fail(kInvalidUsage, "the communicator is not ready");
  }
  Options& options = GetOptions();
  ++options.collectives;
  if (options.launches_left == 0) {
    return Fail(kUnhandledCudaError, "the fake GPU is full");
  }
  if (options.launches_left > 0) --options.launches_left;
  ++groups;
  grouped.push_back({comm, {stream, std::move(parts)}});
  return EndGroup();
}

void End(Comm* comm) {
  static const auto synchronize = Driver<int (*)(void*)>("cuStreamSynchronize");
  comm->ends = true;
  if (comm->stream != nullptr) synchronize(comm->stream);
  Gpu::Of(comm->device).Remove(*comm);
  Meeting::Leave(comm->meeting);
  delete comm;
}

}  // namespace

// No real NCCL has this.
extern "C" [[gnu::visibility("default")]] Options* FakeNcclOptions() {
  return &GetOptions();
}

extern "C" [[gnu::visibility("default")]] const char* ncclGetErrorString(
    int result) {
  switch (result) {
    case kUnhandledCudaError:
      return "unhandled cuda error";
    case kSystemError:
      return "unhandled system error";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "some other error";
  }
}
extern "C" [[gnu::visibility("default")]] const char* ncclGetLastError(Comm*) {
  return last_error;
}

ENTRY ncclGetVersion(int* version) {
  *version = GetOptions().version;
  return kSuccess;
}

struct UniqueId {
  Address address;
  char rest[128 - sizeof(Address)];
};
ENTRY ncclGetUniqueId(void* id) {
  if (GetOptions().no_id) return Fail(kSystemError, "no network interface");
  Address address{};
  if (!Meeting::Found(address)) return Fail(kSystemError, "no memory");
  std::memcpy(id, &address, sizeof(address));  // which may lie anywhere
  return kSuccess;
}

struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};
ENTRY ncclCommInitRankConfig(Comm** made, int size, UniqueId id, int rank,
                             const Config* config) {
  int device = 0;
  if (!InContext(device)) return Fail(kUnhandledCudaError, "no context");
  if (config->size < sizeof(Config) || config->magic != 0xcafebeef ||
      config->version < 21400 || config->blocking != 0) {
    return Fail(kInvalidArgument, "a fake that blocks would hang tests");
  }
  Meeting* const meeting = Meeting::Join(id.address, size);
  if (meeting == nullptr) return Fail(kSystemError, "nobody is there");
  const uint64_t number = static_cast<uint64_t>(id.address.process) << 32 |
                          static_cast<uint32_t>(id.address.file);
  *made = new Comm{meeting, rank, device, number};
  Gpu::Of(device).Add(**made);
  if (GetOptions().fails_to_init == rank) {
    (*made)->async_error = kSystemError;
    return kInProgress;
  }
  char uuid[16];
  Driver<int (*)(char*, int)>("cuDeviceGetUuid")(uuid, device);
  meeting->Arrive(rank, uuid);
  return kInProgress;
}

ENTRY ncclCommGetAsyncError(Comm* comm, int* state) {
  if (comm->async_error != kSuccess) {
    last_error = comm->reason;
    *state = comm->async_error.load();
    return kSuccess;
  }
  if (!comm->connected && comm->meeting->AllAreHere()) {
    comm->connected = true;
    if (comm->meeting->TwoShareAGpu()) {
      comm->reason = last_error = "Duplicate GPU detected";
      comm->async_error = kInvalidUsage;
    }
  }
  if (!comm->asked.empty() && ++comm->looks >= 2) PutOnStreams(*comm);
  *state = comm->connected && comm->asked.empty() ? kSuccess : kInProgress;
  return kSuccess;
}
ENTRY ncclCommFinalize(Comm*) { return kSuccess; }
ENTRY ncclCommDestroy(Comm* comm) {
  End(comm);
  return kSuccess;
}
ENTRY ncclCommAbort(Comm* comm) {
  End(comm);
  return kSuccess;
}

ENTRY ncclGroupStart() {
  ++groups;
  return kSuccess;
}
ENTRY ncclGroupEnd() { return EndGroup(); }

ENTRY ncclAllReduce(const void* input, void* output, size_t count, int type,
                    int op, Comm* comm, void* stream) {
  return Ask(comm, stream, {{input, output, count, type, op, -1}});
}
ENTRY ncclReduce(const void* input, void* output, size_t count, int type,
                 int op, int root, Comm* comm, void* stream) {
  return Ask(comm, stream, {{input, output, count, type, op, root}});
}
ENTRY ncclBroadcast(const void* input, void* output, size_t count, int type,
                    int root, Comm* comm, void* stream) {
  return Ask(comm, stream, {{input, output, count, type, kMove, root}});
}
ENTRY ncclReduceScatter(const void* input, void* output, size_t count, int type,
                        int op, Comm* comm, void* stream) {
  size_t element_bytes = 0;
  tfring::VisitType(kTypes[type],
                    [&](auto zero) { element_bytes = sizeof(zero); });
  std::vector<Part> parts;
  for (int rank = 0; rank < comm->meeting->size(); ++rank) {
    const auto* const from =
        static_cast<const std::byte*>(input) + rank * count * element_bytes;
    parts.push_back({from, output, count, type, op, rank});
  }
  return Ask(comm, stream, std::move(parts));
}
ENTRY ncclAllGather(const void* input, void* output, size_t count, int type,
                    Comm* comm, void* stream) {
  size_t element_bytes = 0;
  tfring::VisitType(kTypes[type],
                    [&](auto zero) { element_bytes = sizeof(zero); });
  std::vector<Part> parts;
  for (int rank = 0; rank < comm->meeting->size(); ++rank) {
    auto* const to =
        static_cast<std::byte*>(output) + rank * count * element_bytes;
    parts.push_back({input, to, count, type, kMove, rank});
  }
  return Ask(comm, stream, std::move(parts));
}
