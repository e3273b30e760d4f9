// A thread that runs its tasks in turn.
//
// Thread-safe.
#ifndef TFRING_OPS_ENGINE_EXECUTION_WORKER_H_
#define TFRING_OPS_ENGINE_EXECUTION_WORKER_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tfring {

class Worker {
 public:
  // Calls `after_each` on the thread, which the first Add starts, after each
  // task.
  explicit Worker(std::function<void()> after_each)
      : after_each_(std::move(after_each)) {}
  // Runs the remaining tasks first.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Never blocks.
  void Add(std::function<void()> work);

  // The number of tasks that are not done, the current one included.
  size_t left() const;

 private:
  void Run();

  const std::function<void()> after_each_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // The first one is running.
  bool ends_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_WORKER_H_
