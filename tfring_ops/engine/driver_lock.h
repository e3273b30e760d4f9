// One thread at a time, the driver, owns an engine's state.
//
// Thread-safe.
//
// Note [The thread that submits a small request runs it]
// To wake the engine's thread takes several times as long as a small collective
// within a machine.  So there the driver is the engine's thread or, while
// nothing else is in flight, for a moment the thread that submits a small
// request.  If a rank's request is still missing then, the engine's thread is
// woken.  Between machines it always is: the network takes longer than that.
#ifndef TFRING_OPS_ENGINE_DRIVER_LOCK_H_
#define TFRING_OPS_ENGINE_DRIVER_LOCK_H_

#include <atomic>
#include <thread>

#include "tfring_ops/base/backoff.h"

namespace tfring {

class DriverLock {
 public:
  // Unlike a mutex's, it may be called, and then fails, on the thread that has
  // the lock: a `done` that the driver calls may submit.
  bool TryLock() {
    if (is_taken_.exchange(true, std::memory_order_acquire)) return false;
    driver_ = std::this_thread::get_id();
    return true;
  }

  void Lock() {
    for (Backoff backoff; !TryLock();) backoff.Pause();
  }

  void Unlock() {
    driver_ = std::thread::id();
    is_taken_.store(false, std::memory_order_release);
  }

  bool IsMine() const { return driver_ == std::this_thread::get_id(); }

 private:
  std::atomic<bool> is_taken_{false};
  std::atomic<std::thread::id> driver_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_DRIVER_LOCK_H_
