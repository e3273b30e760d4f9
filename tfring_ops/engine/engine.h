// The engine: takes tensor entries in any order, agrees with all ranks on the
// entries that are ready everywhere, and runs them, on threads of its own: one,
// and one more for each lane (lanes.h) if there are several.  A small one may
// run on the thread that submits it.
//
// Thread-safe.
//
// Invariants:
// - Only one thread at a time talks to each transport: the driver, which is the
//   engine's or one that submits, or the worker of a lane.
// - Every `done` is called exactly once, also at shutdown and when a peer dies.
// - The negotiation alone decides the order of execution.
// - An error that every rank received leaves the engine as it was; after a
//   lost peer every later entry fails at once, with the same message.
// - An idle engine uses no CPU worth the name: it looks for a peer's message
//   fifty times a second, and after a second four times.  One that nobody has
//   used yet has no thread where its process set has an IdleWatch.
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

class Engine {
 public:
  // Collective: returns when rank 0's options have reached this rank.
  // REQUIRES: `kernels` outlives the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Start(const Options& options,
                                                       ProcessSet process_set,
                                                       const Kernels& kernels);

  // Shuts down.
  virtual ~Engine() = default;

  // Never waits for a rank to submit something, but for a moment.  A small one
  // may be done when it returns, and `done` be called on this thread: once all
  // ranks have it, this may take as long as the collective does.
  // REQUIRES: the caller holds no lock that a `done` takes.
  // InvalidArgument (by `done`) if an entry of the same name is in flight on
  // this rank.
  virtual void Submit(TensorEntry entry) = 0;

  // Tells all ranks that this one has finished, fails all entries in flight,
  // and joins the thread.  The first rank's shutdown ends the engine of every
  // rank; the others see it as an error of what they submit later.
  virtual void Shutdown() = 0;

  // Soon fails everything with `reason`, on all ranks: the engine of another
  // process set has found a rank lost.  Never blocks.
  virtual void Abort(const absl::Status& reason) = 0;

  // Why it takes nothing more: a rank is lost or has left.  OK while it does.
  virtual absl::Status ended() = 0;

  // In the process set.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Rank 0's, the same on every rank.
  virtual const Options& options() const = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_ENGINE_H_
