#include "tests/cpp/tcp_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "tfring_ops/transport/tcp/tcp.h"

namespace tfring {
namespace {

void Check(bool works) {
  if (!works) std::abort();
}

}  // namespace

std::vector<std::vector<int>> ConnectedSockets(int size) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  Check(bind(listener, name, length) == 0 && listen(listener, 1) == 0 &&
        getsockname(listener, name, &length) == 0);
  std::vector<std::vector<int>> sockets(size, std::vector<int>(size, -1));
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < i; ++j) {
      sockets[i][j] = socket(AF_INET, SOCK_STREAM, 0);
      Check(connect(sockets[i][j], name, length) == 0);
      sockets[j][i] = accept(listener, nullptr, nullptr);
      Check(sockets[j][i] >= 0);
    }
  }
  close(listener);
  return sockets;
}

int LateSockets::Connect(int rank, int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (rank > peer) {
    const auto sockets = ConnectedSockets(2);
    made_[{peer, rank}] = sockets[0][1];
    return sockets[1][0];
  }
  const auto node = made_.extract({rank, peer});
  return node ? node.mapped() : kNotYet;
}

LateSockets::~LateSockets() {
  for (const auto& [ranks, socket] : made_) close(socket);
}

}  // namespace tfring
