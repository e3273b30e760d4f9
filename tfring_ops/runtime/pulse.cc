#include "tfring_ops/runtime/pulse.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace tfring {
namespace {

class Pulse {
 public:
  Pulse(int socket, double seconds)
      : socket_(socket), period_(seconds), thread_([this] { Beat(); }) {}
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;
  ~Pulse() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    thread_.join();
    close(socket_);
  }

  int socket() const { return socket_; }

 private:
  void Beat() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopping_) {
      // A full buffer is no error: whoever does not read knows of the byte
      // before.
      if (send(socket_, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
          errno != EAGAIN && errno != EINTR) {
        return;
      }
      stop_.wait_for(lock, period_, [this] { return stopping_; });
    }
  }

  const int socket_;
  const std::chrono::duration<double> period_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

// Leaked, as a process may end at any time.
struct Current {
  static Current& Global() {
    static auto* const current = [] {
      pthread_atfork([] { Global().mutex.lock(); },
                     [] { Global().mutex.unlock(); }, LeaveToParent);
      return new Current;
    }();
    return *current;
  }

  // The child has no such thread, which its end would wait for.
  static void LeaveToParent() {
    if (Global().pulse != nullptr) close(Global().pulse.release()->socket());
    Global().mutex.unlock();
  }

  std::mutex mutex;
  std::unique_ptr<Pulse> pulse;
};

}  // namespace

absl::Status StartPulse(int socket, double seconds) {
  Current& current = Current::Global();
  std::lock_guard<std::mutex> lock(current.mutex);
  if (current.pulse != nullptr) {
    return absl::FailedPreconditionError("this process has a pulse already");
  }
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  current.pulse = std::make_unique<Pulse>(socket, seconds);
  return absl::OkStatus();
}

void StopPulse() {
  Current& current = Current::Global();
  std::lock_guard<std::mutex> lock(current.mutex);
  current.pulse = nullptr;
}

}  // namespace tfring
