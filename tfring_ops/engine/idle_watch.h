// One thread that serves all engines that have never been used, in place of a
// thread for each: see Note [Engines that nobody has used].
//
// Thread-safe.
//
// Note [Engines that nobody has used]
// A job may have many process sets, and each rank uses a few.  So an engine
// starts its own thread at the first request, of this rank or, as its control
// channel tells, of another one.  Until then this thread sends and receives its
// heartbeats.
#ifndef TFRING_OPS_ENGINE_IDLE_WATCH_H_
#define TFRING_OPS_ENGINE_IDLE_WATCH_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "tfring_ops/base/clock.h"

namespace tfring {

class IdleWatch {
 public:
  // Does the work that is due, without blocking, and returns the longest time
  // until the next call, or none if no call is needed.
  using Look = std::function<std::optional<std::chrono::microseconds>()>;

  // How long an engine with nothing to do sleeps between looks at its mailbox.
  // Ranks wait for such a rank only for a report, a shutdown response or its
  // leave from a cached schedule.
  static constexpr std::chrono::milliseconds kShortestPeriod{20};
  static constexpr std::chrono::milliseconds kLongestPeriod{250};
  // The period of an engine that has had nothing to do for a while, if its
  // heartbeats can be put off for that long.
  static std::chrono::microseconds Period(
      std::chrono::nanoseconds heartbeat_look);

  // REQUIRES: `clock` outlives this.
  explicit IdleWatch(const Clock& clock = SteadyClock()) : clock_(clock) {}
  // REQUIRES: every owner has been removed, or its `look` has returned none.
  ~IdleWatch();
  IdleWatch(const IdleWatch&) = delete;
  IdleWatch& operator=(const IdleWatch&) = delete;

  // Calls `look` from now on, until it returns none or `owner` is removed.  All
  // calls are on one thread, in turn.
  void Add(const void* owner, Look look);
  // Removes `owner`.  When it returns, `look` is not being called any more.
  void Remove(const void* owner);

 private:
  void Run();

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const void*, Look> looks_;
  bool ends_ = false;
  std::thread thread_;  // from the first Add on
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_IDLE_WATCH_H_
