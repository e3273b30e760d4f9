// The entries between a Start op and its Done: submitted to the engine and not
// collected yet.
//
// Thread-safe.
//
// Invariants:
// - Every outcome is handed out at most once.
// - The memory that an entry keeps is released before its outcome is handed
//   out, so that later operations may use it; and not while a GPU works on it,
//   unless the stream of who gets the outcome waits for that: see Note [Who
//   waits for the GPU].
// - A failure is handed out only when nothing of its chain is in flight; see
//   Note [A failure waits for its chain].
#ifndef TFRING_OPS_RUNTIME_HANDLES_H_
#define TFRING_OPS_RUNTIME_HANDLES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/runtime/stream_order.h"

namespace tfring {

using Handle = int64_t;

// The handle before the first start of a chain.
inline constexpr Handle kNoHandle = 0;

// The owner of an entry's memory, if a framework counts references to it.
class EntryMemory {
 public:
  virtual ~EntryMemory() = default;
  // The engine is done with it, and the GPU for whoever uses it next.
  virtual void Release() = 0;
  // It may never be used again; see TensorEntry::keep_memory.
  virtual void Keep() = 0;
};

struct Outcome {
  absl::Status status;
  std::vector<const void*> outputs;     // where the engine wrote; see Buffer
  std::shared_ptr<EntryMemory> memory;  // what Start was given
};

class Handles {
 public:
  using Callback = std::function<void(Outcome)>;
  // An error if the collector of a collective cannot use its outputs, which
  // are there.
  using Check =
      std::function<absl::Status(const std::vector<const void*>& outputs)>;

  // Lives for ever.
  static Handles& Global();

  // Submits `entry` to the engine; its `done` must be empty.  It joins the
  // chain of `previous`.  `memory` may be null; `order` is the entry's, null on
  // the host.
  //
  // An earlier request of the same name that is complete and was never
  // collected, because its step was aborted, is forgotten.
  //
  // Internal if `previous` is not known, or collected already.
  absl::StatusOr<Handle> Start(TensorEntry entry, Handle previous,
                               std::shared_ptr<EntryMemory> memory,
                               std::shared_ptr<StreamOrder> order);

  // Collects: returns the outcome if there is one already; else it goes to
  // `callback`, usually on a thread of the engine's.  If it is of a GPU,
  // `stream` there has been made to wait until it is whole.  An error of
  // `check` is a failure like the engine's.
  //
  // REQUIRES: the last start of the chain has been made; with `check`, the
  // outputs are not allocated by the engine.
  std::optional<Outcome> Take(Handle handle, void* stream, Callback callback,
                              const Check& check = nullptr);

 private:
  struct Chain;
  struct Pending;
  using Name = std::pair<int32_t, std::string>;  // in a process set

  // See Note [Waiting briefly before a callback].
  void WaitBriefly(Handle handle);
  void Complete(const std::shared_ptr<Pending>& pending,
                const absl::Status& status);
  // REQUIRES: `pending` is deliverable, and has been collected.
  Outcome HandOut(Pending& pending);
  // Releases entries that the GPU has done, though nobody may ever collect
  // them.
  void ReleaseWhatIsOver();
  // REQUIRES: mutex_ is held.
  void Forget(Handle handle);

  std::mutex mutex_;  // of all that follows, and of every Pending and Chain
  Handle last_handle_ = kNoHandle;
  // The entries not collected yet, and the newest of them by request name.
  std::unordered_map<Handle, std::shared_ptr<Pending>> pending_;
  std::map<Name, Handle> newest_;
  // Complete ones that a GPU may still work on; in that order.
  std::deque<std::shared_ptr<Pending>> on_gpu_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_HANDLES_H_
