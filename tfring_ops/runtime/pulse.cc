#include "tfring_ops/runtime/pulse.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace tfring {
namespace {

// The one pulse's; -1 without.
std::atomic<int> pulse_socket{-1};

void Beat(std::chrono::duration<double> period) {
  for (;; std::this_thread::sleep_for(period)) {
    // A full buffer is no error: whoever does not read knows of the byte
    // before.
    if (send(pulse_socket, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
        errno != EAGAIN && errno != EINTR) {
      return;
    }
  }
}

// The child's end would not be heard while it holds the connection, nor the
// parent's.
void LeaveToParent() {
  const int socket = pulse_socket.exchange(-1);
  if (socket >= 0) close(socket);
}

}  // namespace

absl::Status StartPulse(int socket, double seconds) {
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  int none = -1;
  if (!pulse_socket.compare_exchange_strong(none, socket)) {
    close(socket);
    return absl::FailedPreconditionError("this process has a pulse already");
  }
  static const int registered = pthread_atfork(nullptr, nullptr, LeaveToParent);
  static_cast<void>(registered);
  std::thread(Beat, std::chrono::duration<double>(seconds)).detach();
  return absl::OkStatus();
}

}  // namespace tfring
