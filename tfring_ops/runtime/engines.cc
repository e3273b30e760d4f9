#include "tfring_ops/runtime/engines.h"

#include <pthread.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/idle_watch.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/nccl/launch_order.h"
#include "tfring_ops/runtime/device_lane.h"
#include "tfring_ops/runtime/kept_memory.h"
#include "tfring_ops/transport/counting.h"
#include "tfring_ops/transport/mpi/mpi.h"
#include "tfring_ops/transport/shared_memory/node_memory.h"
#include "tfring_ops/transport/tcp/tcp.h"

namespace tfring {
namespace {

struct Registered {
  std::vector<int32_t> ranks;      // not set for the world
  std::shared_ptr<Engine> engine;  // null if this rank is not in the set
};

struct Registry {
  // The registry is leaked, as is everything that other threads may use while
  // the process ends.
  static Registry& Global() {
    static auto* registry = [] {
      pthread_atfork([] { Global().mutex.lock(); },
                     [] { Global().mutex.unlock(); }, DisownInChild);
      return new Registry;
    }();
    return *registry;
  }

  // A forked child does not have the engines' threads, for which their
  // destructors would wait.  So it leaks the engines.
  static void DisownInChild() {
    Registry& registry = Global();
    if (!registry.sets.empty()) {
      registry.forked = true;
      new std::map<int32_t, Registered>(std::move(registry.sets));
      registry.sets.clear();
    }
    registry.mutex.unlock();
  }

  std::mutex mutex;
  std::map<int32_t, Registered> sets;  // by id; empty before tfring_init
  bool forked = false;                 // forked from a process that had engines
  int64_t generation = 0;  // the generation of the sets, or 0 if they use MPI
  // The order of the sets on the GPU.
  std::shared_ptr<LaunchOrder> launch_order;
  // The last generation that has ended; changed under `mutex`.
  std::atomic<int64_t> aborted_generation{0};
  absl::Status abort_reason;
};

// REQUIRES: the registry's mutex is held.  Then this thread, which may be an
// engine's own, is not the last owner of an engine.
void AbortEngines(const Registry& registry, const absl::Status& reason) {
  for (const auto& [id, registered] : registry.sets) {
    if (registered.engine != nullptr) registered.engine->Abort(reason);
  }
}

// If one engine has lost a rank, every engine has.
void AbortAll(const absl::Status& reason) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  AbortEngines(registry, reason);
}

absl::Status CheckNotAborted(int64_t generation) {
  Registry& registry = Registry::Global();
  if (registry.aborted_generation < generation) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return registry.abort_reason;
}

// Makes a channel of a process set: 0 for control, without another channel; and
// from 1 on for data, with the channel for control.
using MakeTransport = std::function<absl::StatusOr<std::unique_ptr<Transport>>(
    const Options& options, int channel, Transport* control)>;

SharedMemory SharedMemoryOf(const Options& options) {
  return options.shared_memory ? SharedMemory::kWithinNodes
                               : SharedMemory::kNever;
}

MakeTransport OverMpi(int32_t comm) {
  return [comm](const Options& options, int /*channel*/, Transport* /*control*/)
             -> absl::StatusOr<std::unique_ptr<Transport>> {
    const double timeout = options.transport_timeout_seconds();
    TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> mpi,
                            MakeMpiTransport(comm, timeout));
    return ShareWithinNodes(std::move(mpi), timeout, SharedMemoryOf(options));
  };
}

MakeTransport OverSockets(int64_t generation, const SocketRanks& ranks) {
  return [=](const Options& options, int channel,
             Transport* control) -> absl::StatusOr<std::unique_ptr<Transport>> {
    const double timeout = options.transport_timeout_seconds();
    TFRING_RETURN_IF_ERROR(CheckNotAborted(generation));
    std::vector<int> sockets(ranks.nodes.size(), kNotYet);
    // See Note [Later connections].
    for (int peer = 0; control == nullptr && peer < ranks.size(); ++peer) {
      if (peer == ranks.rank) continue;
      TFRING_ASSIGN_OR_RETURN(sockets[peer], ranks.connect(channel, peer));
    }
    TFRING_ASSIGN_OR_RETURN(
        std::unique_ptr<Transport> transport,
        MakeTcpTransport(
            ranks.rank, ranks.nodes, sockets, timeout, SteadyClock(),
            [=](int peer) { return ranks.connect(channel, peer); }));
    // Until the engine owns the transport, Abort cannot reach it, so the
    // transport checks for an abort by itself.
    const auto check = [generation] { return CheckNotAborted(generation); };
    transport->SetAttendant(check);
    TFRING_ASSIGN_OR_RETURN(transport,
                            ShareWithinNodes(std::move(transport), timeout,
                                             SharedMemoryOf(options), control));
    transport->SetAttendant(check);
    return transport;
  };
}

// Makes the lane of a GPU for a process set.
decltype(ProcessSet::make_device_lane) MakesDeviceLane(
    std::shared_ptr<LaunchOrder> order, int32_t id) {
  return [place = LaunchPlace{std::move(order), id}](
             const Options& options, int32_t device, Transport& data) {
    return MakeDeviceLane(options, device, data, place);
  };
}

// From here on the world's collectives on GPUs have one order with those of
// every process set; no set has an engine yet.  Each rank begins at the same
// place, where its engine ends a barrier.
absl::Status OrderLaunches(Engine& world,
                           const std::shared_ptr<LaunchOrder>& order) {
  auto ended = std::make_shared<absl::Notification>();
  auto status = std::make_shared<absl::Status>();
  TensorEntry entry;
  entry.request.kind = CollectiveKind::kBarrier;
  entry.request.name = "the order of process sets on GPUs";
  entry.done = [=](const absl::Status& outcome) {
    if (outcome.ok()) order->Begin();
    *status = outcome;
    ended->Notify();
  };
  world.Submit(std::move(entry));
  ended->WaitForNotification();
  return *status;
}

std::shared_ptr<LaunchOrder> CurrentLaunchOrder() {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return registry.launch_order;
}

void SetLaunchOrder(std::shared_ptr<LaunchOrder> order) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.launch_order = std::move(order);
}

absl::StatusOr<std::unique_ptr<Engine>> StartEngine(
    const Options& options, ProcessSet process_set,
    const MakeTransport& make_transport) {
  const auto make_counting =
      [options, make_transport](
          int channel,
          Transport* control) -> absl::StatusOr<std::unique_ptr<Transport>> {
    TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                            make_transport(options, channel, control));
    return MakeCountingTransport(std::move(transport));
  };
  TFRING_ASSIGN_OR_RETURN(process_set.control,
                          make_counting(/*channel=*/0, /*control=*/nullptr));
  Transport* const control = process_set.control.get();
  absl::StatusOr<std::unique_ptr<Transport>> data =
      make_counting(/*channel=*/1, control);
  if (!data.ok()) {
    process_set.control->Abort(data.status());  // Peers may wait for this rank.
    return data.status();
  }
  process_set.data = *std::move(data);
  process_set.make_data = [=, channel = 1]() mutable {
    return make_counting(++channel, control);
  };
  process_set.on_lost = AbortAll;
  return Engine::Start(options, std::move(process_set), CpuKernels());
}

int64_t Generation() {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  return registry.generation;
}

void Register(int32_t id, Registered registered, int64_t generation) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  // The generation may have been aborted since its engine was started.
  if (generation > 0 && registry.aborted_generation >= generation &&
      registered.engine != nullptr) {
    registered.engine->Abort(registry.abort_reason);
  }
  registry.generation = generation;
  registry.sets[id] = std::move(registered);
}

absl::Status StartWorldOver(int64_t generation, bool replaces_ranks,
                            const MakeTransport& make_transport) {
  TFRING_ASSIGN_OR_RETURN(Options options, Options::FromEnvironment());
  options.replaces_ranks = replaces_ranks;
  KeepFreedMemory();
  ProcessSet process_set;
  const auto order = std::make_shared<LaunchOrder>();
  process_set.make_device_lane = MakesDeviceLane(order, kWorldId);
  TFRING_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      StartEngine(options, std::move(process_set), make_transport));
  SetLaunchOrder(order);
  Register(kWorldId, {{}, std::move(engine)}, generation);
  return absl::OkStatus();
}

absl::Status AddProcessSetOver(int32_t id, std::vector<int32_t> ranks,
                               const MakeTransport& make_transport) {
  TFRING_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> world,
                          EngineOf(kWorldId));
  const std::shared_ptr<LaunchOrder> order = CurrentLaunchOrder();
  if (!order->begun() &&
      world->options().gpu_backend != Options::GpuBackend::kRing) {
    TFRING_RETURN_IF_ERROR(OrderLaunches(*world, order));
  }
  std::unique_ptr<Engine> engine;
  if (Members(id, ranks).RankOf(world->rank()) >= 0) {
    ProcessSet process_set;
    process_set.id = id;
    process_set.world_ranks = ranks;
    process_set.make_device_lane = MakesDeviceLane(order, id);
    // The watch is leaked, as the registry is.
    static auto* const idle_watch = new IdleWatch;
    process_set.idle_watch = idle_watch;
    TFRING_ASSIGN_OR_RETURN(
        engine,
        StartEngine(world->options(), std::move(process_set), make_transport));
  }
  Register(id, {std::move(ranks), std::move(engine)}, Generation());
  return absl::OkStatus();
}

}  // namespace

absl::Status StartWorld(int32_t comm) {
  return StartWorldOver(/*generation=*/0, /*replaces_ranks=*/false,
                        OverMpi(comm));
}

absl::Status StartWorldOnSockets(int64_t generation, const SocketRanks& ranks,
                                 bool replaces_ranks) {
  return StartWorldOver(generation, replaces_ranks,
                        OverSockets(generation, ranks));
}

absl::Status AddProcessSet(int32_t id, std::vector<int32_t> ranks,
                           int32_t comm) {
  return AddProcessSetOver(id, std::move(ranks), OverMpi(comm));
}

absl::Status AddProcessSetOnSockets(int32_t id, std::vector<int32_t> ranks,
                                    const SocketRanks& connected) {
  return AddProcessSetOver(id, std::move(ranks),
                           OverSockets(Generation(), connected));
}

void AbortGeneration(int64_t generation, const std::string& reason) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  if (registry.aborted_generation >= generation) return;
  registry.abort_reason = absl::UnavailableError(reason);
  registry.aborted_generation = generation;
  if (registry.generation <= generation) {
    AbortEngines(registry, registry.abort_reason);
  }
}

void RemoveProcessSet(int32_t id) {
  Registry& registry = Registry::Global();
  std::shared_ptr<Engine> engine;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    const auto found = registry.sets.find(id);
    if (found == registry.sets.end()) return;
    engine = found->second.engine;
  }
  // Shut the engine down before it is forgotten, so that an abort still reaches
  // it.
  if (engine != nullptr) engine->Shutdown();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.sets.erase(id);
}

void StopEngines() {
  Registry& registry = Registry::Global();
  std::map<int32_t, Registered> sets;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    sets = registry.sets;
  }
  // Shut the engines down here, because their last owner may be a thread that
  // outlives MPI, and before they are forgotten, so that an abort still reaches
  // them.
  for (const auto& [id, registered] : sets) {
    if (registered.engine != nullptr) registered.engine->Shutdown();
  }
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.sets.clear();
}

absl::StatusOr<std::shared_ptr<Engine>> EngineOf(int32_t process_set_id) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  if (registry.forked) {
    return absl::FailedPreconditionError(
        "this process was forked from a rank after tfring.init(), and only the "
        "rank itself can run collectives");
  }
  if (registry.sets.empty()) {
    return absl::FailedPreconditionError(
        "tfring is not initialized. Call tfring.init() first.");
  }
  const auto found = registry.sets.find(process_set_id);
  if (found == registry.sets.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no process set ", process_set_id,
                     ": it has been removed, or was of an earlier "
                     "tfring.init(). Add it, and trace functions anew."));
  }
  if (found->second.engine == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this rank, ", registry.sets[kWorldId].engine->rank(),
        ", is not in process set ", process_set_id, ", which has the ranks ",
        absl::StrJoin(found->second.ranks, ", "),
        ". Call its collectives on these alone: process_set.included()."));
  }
  return found->second.engine;
}

}  // namespace tfring
