// Entries between a Start op and its Done, which are submitted to the engine
// and not collected yet.
//
// Thread-safe.
//
// Invariants:
// - Every outcome is handed out at most once.
// - The memory that an entry keeps is released before its outcome is handed
//   out, so that later operations may use it; and not while a GPU works on it,
//   unless the stream of the collector waits for that work: see Note [Who waits
//   for the GPU].
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
  // Called when the engine no longer uses the memory, and the GPU has done its
  // work for the next user.
  virtual void Release() = 0;
  // Called if the memory may never be used again; see TensorEntry::keep_memory.
  virtual void Keep() = 0;
};

struct Outcome {
  absl::Status status;
  // Where the engine has written; see Buffer.
  std::vector<const void*> outputs;
  std::shared_ptr<EntryMemory> memory;  // What Start was given.
};

class Handles {
 public:
  using Callback = std::function<void(Outcome)>;
  // Returns an error if the caller of Take cannot use these outputs.
  using Check =
      std::function<absl::Status(const std::vector<const void*>& outputs)>;

  // The object is never destroyed.
  static Handles& Global();

  // Submits `entry` to the engine; its `done` must be empty.  It joins the
  // chain of `previous`.  `memory` may be null; `order` is the entry's, null on
  // the host.
  //
  // An earlier request of the same name that is complete and was never
  // collected, because its step was aborted, is forgotten.
  //
  // Internal if `previous` is unknown or has been collected.
  absl::StatusOr<Handle> Start(TensorEntry entry, Handle previous,
                               std::shared_ptr<EntryMemory> memory,
                               std::shared_ptr<StreamOrder> order);

  // Collects an entry.  Returns the outcome if there is one; otherwise
  // `callback` gets it later, usually on one of the engine's threads.  On a
  // GPU, `stream` has then been made to wait until the outputs are whole.  An
  // error of `check` counts as a failure of the collective.
  //
  // REQUIRES: this start is not the newest of a chain that gets another one;
  // with `check`, the outputs are not allocated by the engine.
  std::optional<Outcome> Take(Handle handle, void* stream, Callback callback,
                              const Check& check = nullptr);

 private:
  struct Chain;
  struct Pending;
  using Name = std::pair<int32_t, std::string>;  // A request of a process set.

  // Returns the chain of `previous`, or a new one.
  // REQUIRES: mutex_ is held.
  absl::StatusOr<std::shared_ptr<Chain>> ChainAfter(
      Handle previous, const TensorEntry& entry) const;
  // Forgets a complete request that has the name of `pending`.
  // InvalidArgument if one of its chain has it.
  // REQUIRES: mutex_ is held.
  absl::Status FreeName(const Pending& pending, const TensorEntry& entry);
  // See Note [Waiting briefly before a callback].
  void WaitBriefly(Handle handle);
  void Complete(const std::shared_ptr<Pending>& pending,
                const absl::Status& status);
  // REQUIRES: `pending` is deliverable, and has been collected.
  Outcome HandOut(Pending& pending);
  // Releases the memory of entries that the GPU has completed.  Some are never
  // collected.
  void ReleaseWhatIsOver();
  // REQUIRES: mutex_ is held.
  void Forget(Handle handle);

  std::mutex mutex_;  // Guards the members below, and every Pending and Chain.
  Handle last_handle_ = kNoHandle;
  // The entries that are not collected yet, and the newest of each name.
  std::unordered_map<Handle, std::shared_ptr<Pending>> pending_;
  std::map<Name, Handle> newest_;
  // Complete entries that a GPU may still work on, in their order.
  std::deque<std::shared_ptr<Pending>> on_gpu_;
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_HANDLES_H_
