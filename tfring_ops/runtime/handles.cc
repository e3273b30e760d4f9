#include "tfring_ops/runtime/handles.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/runtime/engines.h"

namespace tfring {
namespace {

// See Note [Waiting briefly before a callback].
constexpr int64_t kSmallBytes = 64 << 10;
constexpr std::chrono::microseconds kBriefWait{30};

}  // namespace

// Note [A failure waits for its chain]
//
// A train step starts all its reductions, each start after the one before it
// (`prev`), and then collects them.  When a Done fails, the framework aborts
// the step at once.  XLA then frees the step's buffers, in which the engine
// would still be writing for the later entries of the chain.  So a failure is
// held back until the engine has completed every entry of the chain.
//
// That is enough because a Done takes the handle of the chain's last start as
// an input: when any Done runs, every entry of the chain has been submitted,
// here and on the other ranks, and so completes.  (Chains of one XLA program
// follow one another; see `ended` in op_definitions.h.)
//
// TensorFlow's executor does not need this, since the entries keep their
// memory alive.  But there, too, it leaves nothing in flight behind a failed
// step, so that the next step may use the same names at once.

struct Handles::Chain {
  // The engine's view of it.
  const std::shared_ptr<tfring::Chain> of_engine =
      std::make_shared<tfring::Chain>();
  int in_flight = 0;
  std::vector<std::shared_ptr<Pending>> failed;  // held back, with a callback
};

struct Handles::Pending {
  // Returns true if the outcome may be handed out.
  bool Deliverable() const {
    return complete && (outcome.status.ok() || chain->in_flight == 0);
  }

  Name name;
  std::shared_ptr<Chain> chain;
  bool is_small = false;
  std::atomic<bool> is_over = false;  // as `complete`, without the mutex
  bool complete = false;
  Outcome outcome;
  Callback callback;           // set once collected
  int64_t waits_since_ns = 0;  // and then, if the timeline records
};

Handles& Handles::Global() {
  static Handles& handles = *new Handles();
  return handles;
}

absl::StatusOr<Handle> Handles::Start(TensorEntry entry, Handle previous,
                                      std::shared_ptr<EntryMemory> memory) {
  auto pending = std::make_shared<Pending>();
  pending->name = {entry.request.process_set_id, entry.request.name};
  pending->outcome.memory = memory;
  pending->is_small = SizeInBytes(entry.request) <= kSmallBytes;
  for (const TensorEntry::Buffer& buffer : entry.buffers) {
    pending->outcome.outputs.push_back(buffer.output);
  }
  Handle handle;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (previous == kNoHandle) {
      pending->chain = std::make_shared<Chain>();
    } else if (auto it = pending_.find(previous); it != pending_.end()) {
      pending->chain = it->second->chain;
    } else {
      return absl::InternalError(absl::StrCat(
          "Start of '", pending->name.second, "': no request with handle ",
          previous, " is waiting to be collected."));
    }
    ++pending->chain->in_flight;
    if (auto it = newest_.find(pending->name); it != newest_.end()) {
      const Handle earlier = it->second;
      if (pending_.at(earlier)->chain == pending->chain) {
        // This holds even if the engine has completed it: all ranks must decide
        // alike, or some would wait for a collective that others have refused.
        status = absl::InvalidArgumentError(absl::StrCat(
            "'", pending->name.second,
            "': a collective of that name has been started and not collected. "
            "Give each its own name=."));
      } else if (pending_.at(earlier)->complete) {
        Forget(earlier);
      }
    }
    handle = ++last_handle_;
    pending_[handle] = pending;
    if (status.ok() && !pending->name.second.empty()) {
      newest_[pending->name] = handle;
    }
  }
  if (!status.ok()) {
    Complete(pending, status);
    return handle;
  }
  entry.done = [this, pending](const absl::Status& status) {
    Complete(pending, status);
  };
  if (memory != nullptr) {
    entry.keep_memory = [memory = std::move(memory)] { memory->Keep(); };
  }
  entry.chain = pending->chain->of_engine;
  SubmitToEngine(std::move(entry));
  return handle;
}

// Note [Waiting briefly before a callback]
//
// Notifying a thread that its small collective is done takes as long as the
// collective.  So a thread that collects it polls for the outcome for a moment,
// and yields its core to the engine meanwhile, before it leaves a callback.
void Handles::WaitBriefly(Handle handle) {
  std::shared_ptr<Pending> pending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = pending_.find(handle);
    if (it == pending_.end() || !it->second->is_small) return;
    pending = it->second;
  }
  const auto end = std::chrono::steady_clock::now() + kBriefWait;
  while (!pending->is_over.load(std::memory_order_acquire) &&
         std::chrono::steady_clock::now() < end) {
    sched_yield();
  }
}

std::optional<Outcome> Handles::Take(Handle handle, Callback callback) {
  WaitBriefly(handle);
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = pending_.find(handle);
  if (it == pending_.end()) {
    Outcome unknown;
    unknown.status = absl::InvalidArgumentError(absl::StrCat(
        "No collective with handle ", handle,
        " is waiting to be collected: another of the same name was started "
        "meanwhile. Give each its own name=, or wait for the first."));
    return unknown;
  }
  std::shared_ptr<Pending> pending = it->second;
  Forget(handle);
  if (pending->Deliverable()) return std::move(pending->outcome);
  pending->callback = std::move(callback);
  pending->waits_since_ns = Timeline::Global().BeginWait();
  if (pending->complete) pending->chain->failed.push_back(std::move(pending));
  return std::nullopt;
}

void Handles::Complete(const std::shared_ptr<Pending>& pending,
                       const absl::Status& status) {
  // First, so that nobody has the outcome sooner.
  if (pending->outcome.memory != nullptr) pending->outcome.memory->Release();
  std::vector<std::shared_ptr<Pending>> deliverable;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Chain& chain = *pending->chain;
    pending->complete = true;
    pending->is_over.store(true, std::memory_order_release);
    pending->outcome.status = status;
    if (--chain.in_flight == 0) deliverable.swap(chain.failed);
    if (pending->callback) {
      (pending->Deliverable() ? deliverable : chain.failed).push_back(pending);
    }
  }
  for (const std::shared_ptr<Pending>& ready : deliverable) {
    const auto& [process_set, name] = ready->name;
    Timeline::Global().RecordWait(name, process_set, ready->waits_since_ns);
    ready->callback(std::move(ready->outcome));
  }
}

void Handles::Forget(Handle handle) {
  auto it = pending_.find(handle);
  auto newest = newest_.find(it->second->name);
  if (newest != newest_.end() && newest->second == handle) {
    newest_.erase(newest);
  }
  pending_.erase(it);
}

}  // namespace tfring
