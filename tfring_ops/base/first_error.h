// The first error that any thread reports.
#ifndef TFRING_OPS_BASE_FIRST_ERROR_H_
#define TFRING_OPS_BASE_FIRST_ERROR_H_

#include <atomic>
#include <mutex>

#include "absl/status/status.h"

namespace tfring {

// Thread-safe.  As long as there is no error, no call waits for a lock.
class FirstError {
 public:
  // Keeps `status`, unless it is OK or there is an error already.
  void Update(const absl::Status& status) {
    if (status.ok()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    error_.Update(status);
    exists_.store(true, std::memory_order_release);
  }

  // Returns the error, or OK if there is none.
  absl::Status Get() const {
    if (!exists_.load(std::memory_order_acquire)) return absl::OkStatus();
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status error_;
  std::atomic<bool> exists_{false};
};

}  // namespace tfring

#endif  // TFRING_OPS_BASE_FIRST_ERROR_H_
