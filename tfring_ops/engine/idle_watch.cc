#include "tfring_ops/engine/idle_watch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tfring {

std::chrono::microseconds IdleWatch::Period(
    std::chrono::nanoseconds heartbeat_look) {
  using std::chrono::microseconds;
  return std::clamp(std::chrono::duration_cast<microseconds>(heartbeat_look),
                    microseconds(kShortestPeriod),
                    microseconds(kLongestPeriod));
}

IdleWatch::~IdleWatch() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void IdleWatch::Add(const void* owner, Look look) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    looks_.emplace(owner, std::move(look));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.notify_one();
}

void IdleWatch::Remove(const void* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  looks_.erase(owner);
}

void IdleWatch::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_) {
    std::chrono::microseconds next = kLongestPeriod;
    for (auto each = looks_.begin(); each != looks_.end();) {
      const std::optional<std::chrono::microseconds> wait = each->second();
      if (wait) next = std::min(next, *wait);
      each = wait ? std::next(each) : looks_.erase(each);
    }
    // Without an owner the thread never wakes up.
    if (looks_.empty()) {
      changed_.wait(lock, [this] { return ends_ || !looks_.empty(); });
    } else {
      clock_.WaitFor(changed_, lock, next);
    }
  }
}

}  // namespace tfring
