#include "tfring_ops/runtime/handles.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/error_messages.h"
#include "tfring_ops/engine/hand_off.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/runtime/engines.h"

namespace tfring {
// Note [A failure waits for its chain]
//
// A train step starts reductions, each start after the one before it (`prev`).
// It collects them after the last start, or each of them after the start that
// follows its own.  When a Done fails, the framework aborts the step at once.
// XLA then frees the step's buffers, and the engine would still be writing
// there for the later entries of the chain.  So a failure is held back until
// the engine has completed every entry of the chain.
//
// Holding it back is enough because a Done takes the handle of the chain's
// newest start as an input: when the Done runs, every entry before it in the
// program has been submitted, here and on all ranks, and so completes.  Every
// later start, of this chain or of the next one, depends on the Done (`ended`
// in op_definitions.h), and so does not run after a failure.
//
// TensorFlow's executor does not need this, since the entries keep their
// memory alive.  But there, too, nothing is left in flight after a failed step,
// so that the next step may use the same names at once.

// Note [Who waits for the GPU]
//
// On a GPU an entry is complete when its work is enqueued on the engine's
// stream.  If the framework's stream waited for that at once, so would all work
// that the framework enqueues later, and backpropagation would not overlap with
// reductions.  So only a Done makes its stream wait, and until then the entry
// keeps its memory, which the framework would otherwise give to work that waits
// for nothing.
//
// A Done that fails is the last of its step, and the step's remaining entries
// are not collected.  So its stream waits for all entries of the chain.
//
// The memory of an entry that is not collected is released once the GPU has
// completed it.  Every later start checks for that, because there may be no
// start of the same name.

struct Handles::Chain {
  // The engine's view of the chain.
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

  // REQUIRES: neither the engine nor the GPU works on the entry any more.
  void Release() {
    order.reset();
    if (outcome.memory != nullptr) outcome.memory->Release();
  }

  Name name;
  std::shared_ptr<Chain> chain;
  // Set while the GPU may work on the entry; null on the host.
  std::shared_ptr<StreamOrder> order;
  bool is_small = false;
  std::atomic<bool> is_over = false;  // as `complete`, without the mutex
  bool complete = false;
  Outcome outcome;
  absl::Status refusal;        // an error of the collector's check
  void* stream = nullptr;      // the collector's stream
  Callback callback;           // set once collected
  int64_t waits_since_ns = 0;  // set once collected, if the timeline records
};

Handles& Handles::Global() {
  static Handles& handles = *new Handles();
  return handles;
}

absl::StatusOr<Handle> Handles::Start(TensorEntry entry, Handle previous,
                                      std::shared_ptr<EntryMemory> memory,
                                      std::shared_ptr<StreamOrder> order) {
  ReleaseWhatIsOver();
  auto pending = std::make_shared<Pending>();
  pending->name = {entry.request.process_set_id, entry.request.name};
  pending->outcome.memory = memory;
  pending->order = std::move(order);
  pending->is_small = SizeInBytes(entry.request) <= kHandOffBytes;
  for (const TensorEntry::Buffer& buffer : entry.buffers) {
    pending->outcome.outputs.push_back(buffer.output);
  }
  Handle handle;
  absl::Status refusal;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    TFRING_ASSIGN_OR_RETURN(pending->chain, ChainAfter(previous, entry));
    ++pending->chain->in_flight;
    refusal = FreeName(*pending, entry);
    handle = ++last_handle_;
    pending_[handle] = pending;
    if (refusal.ok() && !entry.request.name.empty()) {
      newest_[pending->name] = handle;
    }
  }
  const absl::StatusOr<std::shared_ptr<Engine>> engine =
      EngineOf(entry.request.process_set_id);
  if (refusal.ok() && !engine.ok()) {
    refusal = absl::Status(
        engine.status().code(),
        absl::StrCat(tfring::Name(entry.request.kind), " of '",
                     entry.request.name, "': ", engine.status().message()));
  }
  if (!refusal.ok()) {
    Complete(pending, refusal);
    return handle;
  }
  entry.done = [this, pending](const absl::Status& status) {
    Complete(pending, status);
  };
  if (memory != nullptr) {
    entry.keep_memory = [memory = std::move(memory)] { memory->Keep(); };
  }
  entry.chain = pending->chain->of_engine;
  (*engine)->Submit(std::move(entry));
  return handle;
}

absl::StatusOr<std::shared_ptr<Handles::Chain>> Handles::ChainAfter(
    Handle previous, const TensorEntry& entry) const {
  if (previous == kNoHandle) return std::make_shared<Chain>();
  const auto it = pending_.find(previous);
  if (it != pending_.end()) return it->second->chain;
  return absl::InternalError(absl::StrCat(
      "Start of '", entry.request.name, "': no request with handle ", previous,
      " is waiting to be collected."));
}

absl::Status Handles::FreeName(const Pending& pending,
                               const TensorEntry& entry) {
  const auto it = newest_.find(pending.name);
  if (it == newest_.end()) return absl::OkStatus();
  const Handle earlier = it->second;
  // Refuse the name even if the engine has completed the earlier request: all
  // ranks must decide alike, or some would wait for a collective that the rest
  // have refused.
  if (pending_.at(earlier)->chain == pending.chain) {
    return NameInUse(entry.request);
  }
  if (pending_.at(earlier)->complete) Forget(earlier);
  return absl::OkStatus();
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
  const auto end = std::chrono::steady_clock::now() + kResultPoll;
  while (!pending->is_over.load(std::memory_order_acquire) &&
         std::chrono::steady_clock::now() < end) {
    sched_yield();
  }
}

std::optional<Outcome> Handles::Take(Handle handle, void* stream,
                                     Callback callback, const Check& check) {
  WaitBriefly(handle);
  std::unique_lock<std::mutex> lock(mutex_);
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
  pending->stream = stream;
  if (check) pending->refusal = check(pending->outcome.outputs);
  if (pending->outcome.status.ok()) pending->outcome.status = pending->refusal;
  if (pending->Deliverable()) {
    lock.unlock();
    return HandOut(*pending);
  }
  pending->callback = std::move(callback);
  pending->waits_since_ns = Timeline::Global().BeginWait();
  if (pending->complete) pending->chain->failed.push_back(std::move(pending));
  return std::nullopt;
}

void Handles::Complete(const std::shared_ptr<Pending>& pending,
                       const absl::Status& status) {
  const bool on_gpu =
      status.ok() && pending->order != nullptr && pending->order->has_work();
  // Release the memory first, before anybody has the outcome.
  if (!on_gpu) pending->Release();
  std::vector<std::shared_ptr<Pending>> deliverable;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Chain& chain = *pending->chain;
    pending->complete = true;
    pending->is_over.store(true, std::memory_order_release);
    pending->outcome.status = status.ok() ? pending->refusal : status;
    if (on_gpu) on_gpu_.push_back(pending);
    if (--chain.in_flight == 0) deliverable.swap(chain.failed);
    if (pending->callback) {
      (pending->Deliverable() ? deliverable : chain.failed).push_back(pending);
    }
  }
  for (const std::shared_ptr<Pending>& ready : deliverable) {
    const auto& [process_set, name] = ready->name;
    Timeline::Global().RecordWait(name, process_set, ready->waits_since_ns);
    // The callback ends here, although on_gpu_ may keep the entry.
    const Callback callback = std::move(ready->callback);
    callback(HandOut(*ready));
  }
}

// See Note [Who waits for the GPU].
Outcome Handles::HandOut(Pending& pending) {
  Outcome& outcome = pending.outcome;
  std::shared_ptr<StreamOrder> own;
  std::vector<std::shared_ptr<StreamOrder>> abandoned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    own.swap(pending.order);
    for (const std::shared_ptr<Pending>& other : on_gpu_) {
      if (outcome.status.ok()) break;
      if (other->chain != pending.chain || other->order == nullptr) continue;
      abandoned.push_back(other->order);
    }
  }
  if (own != nullptr) {
    const absl::Status status = own->Await(pending.stream);
    if (outcome.status.ok()) outcome.status = status;
    if (outcome.memory != nullptr) outcome.memory->Release();
  }
  for (const std::shared_ptr<StreamOrder>& order : abandoned) {
    // The failure's own error counts.
    order->Await(pending.stream).IgnoreError();
  }
  return std::move(outcome);
}

void Handles::ReleaseWhatIsOver() {
  std::vector<std::shared_ptr<Pending>> over;  // which ends without the mutex
  std::unique_lock<std::mutex> lock(mutex_);
  while (!on_gpu_.empty()) {
    const std::shared_ptr<Pending> first = on_gpu_.front();
    if (const std::shared_ptr<StreamOrder> order = first->order) {
      lock.unlock();
      const absl::StatusOr<bool> done = order->Done();
      lock.lock();
      // After an error the GPU does no more work.
      if (done.ok() && !*done) return;
      if (on_gpu_.empty() || on_gpu_.front() != first) continue;
      if (first->order != nullptr) first->Release();
    }
    on_gpu_.pop_front();
    over.push_back(first);
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
