#include "tfring_ops/ffi/continuations.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace tfring {

Continuations& Continuations::Global() {
  static auto& continuations = *new Continuations;
  return continuations;
}

Continuations::Continuations() {
  const unsigned threads = std::max(std::thread::hardware_concurrency(), 1U);
  for (unsigned i = 0; i < threads; ++i) {
    std::thread([this] { Run(); }).detach();
  }
}

void Continuations::Schedule(std::function<void()> work) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
  }
  has_work_.notify_one();
}

void Continuations::Run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      has_work_.wait(lock, [this] { return !work_.empty(); });
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace tfring
