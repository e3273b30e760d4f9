// The waits of a thread that can only poll: the pause between two polls, and
// the limit.
#ifndef TFRING_OPS_BASE_BACKOFF_H_
#define TFRING_OPS_BASE_BACKOFF_H_

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace tfring {

// Spins briefly, then yields the core, then sleeps: a short wait ends at once,
// and a long one leaves the core to the computation.  A sleep takes about a
// sixteenth of the wait before it.  So it prolongs a wait by at most a
// sixteenth, and a long wait seldom wakes up in vain.  Use one object per wait;
// not thread-safe.
class Backoff {
 public:
  // Offers the core `yields` times before it sleeps.
  explicit Backoff(int yields = kYields) : yields_(yields) {}

  void Pause() {
    ++pauses_;
    if (pauses_ <= kSpins) return;
    if (pauses_ <= kSpins + yields_) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ + sleep_ / 16, kLongestSleep);
  }

  // Returns true in a few of the calls: for checks that may be rare.
  bool SeldomTurn() const { return pauses_ % 64 == 0; }

 private:
  static constexpr int kSpins = 64;
  static constexpr int kYields = 1024;
  static constexpr std::chrono::nanoseconds kLongestSleep{250'000};

  int yields_;
  int64_t pauses_ = 0;
  std::chrono::nanoseconds sleep_{20'000};
};

// Returns true if a wait has passed its limit; 0 means no limit.
inline bool IsTooLong(std::chrono::steady_clock::duration waited,
                      double limit_seconds) {
  return limit_seconds > 0 &&
         std::chrono::duration<double>(waited).count() > limit_seconds;
}

}  // namespace tfring

#endif  // TFRING_OPS_BASE_BACKOFF_H_
