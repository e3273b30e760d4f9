#include "tfring_ops/engine/execution/worker.h"

#include <utility>

namespace tfring {

Worker::~Worker() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::Add(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  changed_.notify_one();
}

size_t Worker::left() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return work_.size();
}

void Worker::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !work_.empty() || ends_; });
    if (work_.empty()) return;
    const std::function<void()>& first = work_.front();
    lock.unlock();
    first();
    lock.lock();
    work_.pop_front();
    lock.unlock();
    after_each_();
    lock.lock();
  }
}

}  // namespace tfring
