// Threads for the continuations of a future.
//
// XLA:CPU runs a future's continuations, up to the rest of the program, on the
// thread that fulfils the promise.  That must not be the engine's thread, so it
// is one of these; there are as many of them as XLA has itself.
#ifndef TFRING_OPS_FFI_CONTINUATIONS_H_
#define TFRING_OPS_FFI_CONTINUATIONS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace tfring {

// Thread-safe.
class Continuations {
 public:
  // Returns the process's object, which is never destroyed, and neither are its
  // threads.
  static Continuations& Global();

  // Runs `work` on one of the threads, as soon as one is free.
  void Schedule(std::function<void()> work);

 private:
  Continuations();
  void Run();

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::function<void()>> work_;
};

}  // namespace tfring

#endif  // TFRING_OPS_FFI_CONTINUATIONS_H_
