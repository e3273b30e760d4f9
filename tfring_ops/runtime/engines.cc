#include "tfring_ops/runtime/engines.h"

#include <pthread.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/runtime/device_lane.h"
#include "tfring_ops/transport/mpi/mpi.h"
#include "tfring_ops/transport/mpi/mpi_shared_memory.h"

namespace tfring {
namespace {

struct Registered {
  std::vector<int32_t> ranks;      // not needed for the world
  std::shared_ptr<Engine> engine;  // nullptr if this rank is none of them
};

struct Registry {
  // Leaked, like all that other threads may use while the process ends.
  static Registry& Global() {
    static auto* registry = [] {
      pthread_atfork([] { Global().mutex.lock(); },
                     [] { Global().mutex.unlock(); }, DisownInChild);
      return new Registry;
    }();
    return *registry;
  }

  // A forked child has none of the engines' threads, which their end would wait
  // for: it leaks the engines.
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
  bool forked = false;                 // from a process that had engines
};

// A rank that one engine has lost is lost for all.
void AbortAll(const absl::Status& reason) {
  Registry& registry = Registry::Global();
  // Held meanwhile, so that no engine's last owner is this thread, an engine's.
  std::lock_guard<std::mutex> lock(registry.mutex);
  for (const auto& [id, registered] : registry.sets) {
    if (registered.engine != nullptr) registered.engine->Abort(reason);
  }
}

absl::StatusOr<std::unique_ptr<Engine>> StartEngine(const Options& options,
                                                    ProcessSet process_set,
                                                    int32_t comm) {
  const auto shared_memory =
      options.shared_memory ? SharedMemory::kWithinNodes : SharedMemory::kNever;
  const auto make_transport = [=,
                               timeout = options.transport_timeout_seconds()] {
    return MakeNodeTransport(comm, timeout, shared_memory);
  };
  TFRING_ASSIGN_OR_RETURN(process_set.control, make_transport());
  TFRING_ASSIGN_OR_RETURN(process_set.data, make_transport());
  process_set.make_data = make_transport;
  process_set.on_lost = AbortAll;
  process_set.make_device_lane = MakeDeviceLane;
  return Engine::Start(options, std::move(process_set), CpuKernels());
}

void Register(int32_t id, Registered registered) {
  Registry& registry = Registry::Global();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.sets[id] = std::move(registered);
}

}  // namespace

absl::Status StartWorld(int32_t comm) {
  TFRING_ASSIGN_OR_RETURN(const Options options, Options::FromEnvironment());
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                          StartEngine(options, ProcessSet(), comm));
  Register(kWorldId, {{}, std::move(engine)});
  return absl::OkStatus();
}

absl::Status AddProcessSet(int32_t id, std::vector<int32_t> ranks,
                           int32_t comm) {
  TFRING_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> world,
                          EngineOf(kWorldId));
  std::unique_ptr<Engine> engine;
  if (Members(id, ranks).RankOf(world->rank()) >= 0) {
    ProcessSet process_set;
    process_set.id = id;
    process_set.world_ranks = ranks;
    TFRING_ASSIGN_OR_RETURN(
        engine, StartEngine(world->options(), std::move(process_set), comm));
  }
  Register(id, {std::move(ranks), std::move(engine)});
  return absl::OkStatus();
}

void RemoveProcessSet(int32_t id) {
  Registry& registry = Registry::Global();
  Registered removed;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    const auto found = registry.sets.find(id);
    if (found == registry.sets.end()) return;
    removed = std::move(found->second);
    registry.sets.erase(found);
  }
  if (removed.engine != nullptr) removed.engine->Shutdown();
}

void StopEngines() {
  Registry& registry = Registry::Global();
  std::map<int32_t, Registered> sets;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    sets.swap(registry.sets);
  }
  // Here, as the last owner may be a thread that outlives MPI.
  for (const auto& [id, registered] : sets) {
    if (registered.engine != nullptr) registered.engine->Shutdown();
  }
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

void SubmitToEngine(TensorEntry entry) {
  absl::StatusOr<std::shared_ptr<Engine>> engine =
      EngineOf(entry.request.process_set_id);
  if (engine.ok()) {
    (*engine)->Submit(std::move(entry));
  } else {
    entry.done(absl::Status(
        engine.status().code(),
        absl::StrCat(Name(entry.request.kind), " of '", entry.request.name,
                     "': ", engine.status().message())));
  }
}

}  // namespace tfring
