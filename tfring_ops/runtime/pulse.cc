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

// The socket of this process's pulse; -1 if there is none.
std::atomic<int> pulse_socket{-1};

void Beat(std::chrono::duration<double> period) {
  for (;; std::this_thread::sleep_for(period)) {
    // A full buffer is no error: the peer has not read the byte before it.
    if (send(pulse_socket, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 &&
        errno != EAGAIN && errno != EINTR) {
      return;
    }
  }
}

// While a child holds the connection, the peer would not notice the parent's
// end.
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
