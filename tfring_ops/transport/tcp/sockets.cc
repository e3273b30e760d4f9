#include "tfring_ops/transport/tcp/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/tcp/tcp.h"

namespace tfring {
namespace {

absl::Status SetOption(int socket, int level, int name, int value) {
  if (setsockopt(socket, level, name, &value, sizeof(value)) != 0) {
    return absl::InternalError(
        absl::StrCat("setsockopt: ", SystemError(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SystemError(int error) { return std::strerror(error); }

// See Note [TCP options].
absl::Status SetUpSocket(int socket) {
  const int flags = fcntl(socket, F_GETFL);
  if (flags < 0 || fcntl(socket, F_SETFL, flags | O_NONBLOCK) != 0 ||
      // A child that holds the socket would hide this process's end.
      fcntl(socket, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("fcntl: ", SystemError(errno)));
  }
  TFRING_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1));
  TFRING_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
                                   kUnacknowledgedMilliseconds));
  TFRING_RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1));
  TFRING_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1));
  return SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
}

int TakeError(int socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

void WaitUntilSent(int socket, Clock::time_point deadline) {
  // This makes POLLOUT report that nothing is unsent.
  const int nothing = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &nothing, sizeof(nothing));
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd writable{socket, POLLOUT, 0};
  poll(&writable, 1, std::max(0, static_cast<int>(rest.count())));
}

size_t ReadSome(int socket, char* data, size_t size) {
  size_t count = 0;
  while (count < size) {
    const ssize_t part = read(socket, data + count, size - count);
    if (part <= 0 && !(part < 0 && errno == EINTR)) break;
    count += part < 0 ? 0 : static_cast<size_t>(part);
  }
  return count;
}

void ReadAway(int socket, uint64_t size) {
  std::array<char, 4096> unread;
  size_t count = unread.size();
  while (size > 0 && count == unread.size()) {
    count = ReadSome(socket, unread.data(),
                     std::min<uint64_t>(size, unread.size()));
    size -= count;
  }
}

}  // namespace tfring
