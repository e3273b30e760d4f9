// Where other threads hand entries to the driver.
//
// Thread-safe.
//
// Invariant: no two entries in flight have the same name.
//
// Note [Executions of a chain]
// Requests of different ranks match by name.  If a rank's step has failed half
// way, and it continues with the next step, its new starts would match the
// starts of other ranks that it left out in the step before.  So a request says
// which execution of its chain it belongs to.  Executions are counted when they
// begin, by the name of the chain's first request that has one: an execution
// that failed half way counts, and one that never began, as on a rank without
// data, does not.  Under a cached schedule this is not checked: a rank that
// skips a part of a chain skips a part of the schedule, and so leaves it.
#ifndef TFRING_OPS_ENGINE_SUBMISSIONS_H_
#define TFRING_OPS_ENGINE_SUBMISSIONS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

class Submissions {
 public:
  // Puts `entry` in flight, and wakes nobody.  After an error the caller still
  // has the entry: InvalidArgument if its name is in flight, or the reason of
  // Close.  A request without a name gets one by the order of calls, "allreduce
  // 7".
  absl::Status Add(TensorEntry& entry);

  // Returns the entries that were added since the last call.
  std::vector<TensorEntry> Take();

  // Counts the requests without a name, and the executions of chains, from 1
  // again: ranks that have waited as spares have counted fewer than the others.
  void RestartNames();

  // Notes that `name` is no longer in flight.
  void Remove(const std::string& name);

  // Makes later Adds fail with `reason`.  Only the first call has an effect.
  void Close(const absl::Status& reason);

  // The reason of Close; OK before.
  absl::Status closed();

  // Asks the driver to shut down, which reads ShutdownRequested.
  void RequestShutdown();
  bool ShutdownRequested();

  // Returns when there is something to take, when Wake or RequestShutdown has
  // been called since the last call, or after `timeout`.  It may return
  // earlier.
  void WaitFor(std::chrono::microseconds timeout, const Clock& clock);
  void Wake();

 private:
  // Counts an execution if `entry` is the first of its chain.
  // REQUIRES: mutex_ is held.
  void TakePlace(TensorEntry& entry);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TensorEntry> added_;
  std::unordered_set<std::string> in_flight_;
  std::unordered_map<CollectiveKind, int64_t> nameless_;  // so far
  std::unordered_map<std::string, int64_t> executions_;   // so far
  absl::Status closed_;
  bool shutdown_requested_ = false;
  bool woken_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_SUBMISSIONS_H_
