// One thread at a time, the driver, owns an engine's state.
//
// Thread-safe.
//
// Note [The thread that submits a small request runs it]
// Waking the engine's thread takes several times as long as a small collective
// within a machine.  So within a machine, the thread that submits a small
// request becomes the driver for a moment, if nothing else is in flight.  If a
// rank's request is still missing afterwards, the engine's thread is woken.
// Between machines it is always woken, because the network takes longer than
// that.
#ifndef TFRING_OPS_ENGINE_DRIVER_LOCK_H_
#define TFRING_OPS_ENGINE_DRIVER_LOCK_H_

#include <atomic>
#include <thread>

#include "tfring_ops/base/backoff.h"

namespace tfring {

class DriverLock {
 public:
  // Unlike std::mutex::try_lock, it may be called on the thread that has the
  // lock, and then fails: a `done` that the driver calls may submit.
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
