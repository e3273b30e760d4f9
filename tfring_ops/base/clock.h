// The time, handed in where an object is made: tests have one that they
// advance.
#ifndef TFRING_OPS_BASE_CLOCK_H_
#define TFRING_OPS_BASE_CLOCK_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tfring {

// Thread-safe.
class Clock {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  using duration = std::chrono::steady_clock::duration;

  virtual ~Clock() = default;

  virtual time_point Now() const = 0;
  // Returns when `changed` is notified or `timeout` has passed.  It may return
  // earlier.
  virtual void WaitFor(std::condition_variable& changed,
                       std::unique_lock<std::mutex>& lock,
                       duration timeout) const = 0;
};

// The process' clock.
inline const Clock& SteadyClock() {
  class Steady final : public Clock {
   public:
    time_point Now() const override { return std::chrono::steady_clock::now(); }
    void WaitFor(std::condition_variable& changed,
                 std::unique_lock<std::mutex>& lock,
                 duration timeout) const override {
      changed.wait_for(lock, timeout);
    }
  };
  static const Steady clock;
  return clock;
}

}  // namespace tfring

#endif  // TFRING_OPS_BASE_CLOCK_H_
