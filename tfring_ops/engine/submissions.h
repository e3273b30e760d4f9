// The one place where other threads meet the engine's.
//
// Thread-safe.
//
// Invariant: of the entries in flight, no two have one name.
//
// Note [Executions of a chain]
// Ranks meet by name.  If a rank's step has failed half way, and it continues
// with the next step, its new starts would meet the starts that it left out in
// the step before.  So a request says which execution of its chain it belongs
// to.  Executions are counted when they begin, by the name of the chain's first
// request that has one: an execution that failed half way counts, and one that
// never began, as on a rank without data, does not.  Under a cached schedule
// this is not checked: a rank that skips a part of a chain skips a part of the
// schedule, and so leaves it.
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
  // Puts `entry` in flight, and wakes nobody.  An error leaves it with the
  // caller: InvalidArgument for a name that is in flight, or Close's error.  A
  // request without a name gets one by the order of calls, "allreduce 7".
  absl::Status Add(TensorEntry& entry);

  // Returns the entries that were added since the last call.
  std::vector<TensorEntry> Take();

  // Counts the requests without a name, and the executions of chains, from 1
  // again: ranks that stood by have counted fewer of them than the others.
  void RestartNames();

  // `name` is no longer in flight.
  void Remove(const std::string& name);

  // Later Adds fail with `reason`.  The first call counts.
  void Close(const absl::Status& reason);

  // The reason of Close; OK before.
  absl::Status closed();

  // Asks for the end; see ShutdownRequested.
  void RequestShutdown();
  bool ShutdownRequested();

  // Returns when there is something to take, the end has been asked for anew,
  // or Wake has been called since the last call; after `timeout`, or before.
  void WaitFor(std::chrono::microseconds timeout, const Clock& clock);
  void Wake();

 private:
  // Counts it if it is the first of its chain.
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
