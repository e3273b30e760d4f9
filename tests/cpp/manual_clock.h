// Clocks that a test advances.
#ifndef TESTS_CPP_MANUAL_CLOCK_H_
#define TESTS_CPP_MANUAL_CLOCK_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "tests/cpp/await.h"
#include "tfring_ops/base/clock.h"

namespace tfring {

// Thread-safe.
class ManualClock final : public Clock {
 public:
  // Each reading advances it by `per_reading`.
  explicit ManualClock(duration per_reading = {}) : per_reading_(per_reading) {}

  time_point Now() const override {
    ++readings_;
    return time_point(duration(now_ += per_reading_.count()));
  }
  // Waits for a moment only, since a look costs nothing in a test.
  void WaitFor(std::condition_variable& changed,
               std::unique_lock<std::mutex>& lock,
               duration timeout) const override {
    last_wait_ = timeout.count();
    changed.wait_for(lock, std::chrono::milliseconds(1));
  }

  void Advance(duration time) { now_ += time.count(); }
  int64_t readings() const { return readings_; }
  // The duration of the last WaitFor, or zero.
  duration last_wait() const { return duration(last_wait_); }

 private:
  const duration per_reading_;
  mutable std::atomic<duration::rep> now_{0}, last_wait_{0};
  mutable std::atomic<int64_t> readings_{0};
};

// One clock per rank's engine.  All clocks show the same time.
class RankClocks {
 public:
  explicit RankClocks(int size) : clocks_(size) {}

  const ManualClock& of(int rank) const { return clocks_[rank]; }

  // Returns when each of `ranks` has processed all earlier events, the answers
  // of its peers, and the answers to those; or when `ended`.  Returns ended().
  template <typename Condition>
  bool AwaitLooks(const std::vector<int>& ranks, const Condition& ended) const {
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<int64_t> due;
      // A look reads the clock twice.  One look may be under way, and a message
      // takes two or three.
      for (const auto& clock : clocks_) due.push_back(clock.readings() + 8);
      for (const int rank : ranks) {
        EXPECT_TRUE(Await([&] {
          return ended() || clocks_[rank].readings() >= due[rank];
        })) << "rank "
            << rank << " does not look";
      }
    }
    return ended();
  }
  void AwaitLooks(const std::vector<int>& ranks) const {
    AwaitLooks(ranks, [] { return false; });
  }

  void Advance(Clock::duration time) {
    for (ManualClock& clock : clocks_) clock.Advance(time);
  }

  // Advances by `time`, and lets `ranks` look every `step`, until it `ended`,
  // which is returned.
  template <typename Condition>
  bool Advance(Clock::duration time, Clock::duration step,
               const std::vector<int>& ranks, const Condition& ended) {
    for (; time.count() > 0 && !ended(); time -= step) {
      Advance(step);
      AwaitLooks(ranks, ended);
      if (testing::Test::HasFailure()) break;
    }
    return ended();
  }
  void Advance(Clock::duration time, Clock::duration step,
               const std::vector<int>& ranks) {
    Advance(time, step, ranks, [] { return false; });
  }

 private:
  std::deque<ManualClock> clocks_;
};

}  // namespace tfring

#endif  // TESTS_CPP_MANUAL_CLOCK_H_
