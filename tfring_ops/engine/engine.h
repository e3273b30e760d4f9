// The engine takes tensor entries in any order, agrees with all ranks on the
// entries that are ready everywhere, and runs them.  It has a thread of its
// own, unless its process set forbids threads, and one for each lane (lanes.h)
// if there are several.  The thread that submits a small request may run it.
//
// Thread-safe.
//
// Invariants:
// - Only one thread at a time talks to each transport: the driver
//   (driver_lock.h), or the worker of a lane.
// - Every `done` is called exactly once, also at shutdown and when a peer dies.
// - The negotiation alone decides the order of execution.
// - An error that every rank received leaves the engine as it was.  After a
//   lost peer every later entry fails at once, with the same message.
// - An idle engine uses hardly any CPU time.  It looks for a peer's message
//   fifty times a second, and after a second four times.  An engine that has
//   never been used has no thread if its process set has an IdleWatch.
#ifndef TFRING_OPS_ENGINE_ENGINE_H_
#define TFRING_OPS_ENGINE_ENGINE_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// The result of Engine::Look.
enum class Found { kNothing, kSomething, kEnd };

class Engine {
 public:
  // Collective: returns when rank 0's options have reached this rank.
  // REQUIRES: `kernels` outlives the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Start(const Options& options,
                                                       ProcessSet process_set,
                                                       const Kernels& kernels);

  // Calls Shutdown.
  virtual ~Engine() = default;

  // Waits at most kDrivePoll for other ranks to submit the same.  If they have,
  // a small request is run on this thread, and its `done` may be called before
  // this returns.
  // REQUIRES: the caller holds no lock that a `done` takes.
  // InvalidArgument (by `done`) if an entry of the same name is in flight on
  // this rank.
  virtual void Submit(TensorEntry entry) = 0;

  // Tells all ranks that this one has finished, fails all entries in flight,
  // and joins the thread, if there is one.  The first rank's shutdown ends the
  // engine of every rank; the others see it as an error of what they submit
  // later.
  virtual void Shutdown() = 0;

  // Looks once at everything that may have happened, and runs what the ranks
  // have agreed on, so that ranks of a simulated job need no threads.  Returns
  // kEnd after a Shutdown or a failure, when the engine has nothing more to do
  // and may be destroyed.
  // REQUIRES: the process set has no thread.
  virtual Found Look() = 0;

  // Makes everything fail with `reason`, on all ranks, because the engine of
  // another process set has found a rank lost.  Never blocks.
  virtual void Abort(const absl::Status& reason) = 0;

  // Returns why the engine refuses entries: a rank is lost or has left.  OK
  // while it accepts them.
  virtual absl::Status ended() = 0;

  // The rank in the process set, and the number of its ranks.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The options of rank 0, which all ranks have received.
  virtual const Options& options() const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_ENGINE_H_
