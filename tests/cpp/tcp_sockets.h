// Ranks as threads that are connected by TCP on the loopback interface.
#ifndef TESTS_CPP_TCP_SOCKETS_H_
#define TESTS_CPP_TCP_SOCKETS_H_

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tfring {

// sockets[i][j] is rank i's connection to rank j, and -1 where they are one.
std::vector<std::vector<int>> ConnectedSockets(int size);

// Connections that are made when the higher one of two ranks first asks.
class LateSockets {
 public:
  LateSockets() = default;
  ~LateSockets();
  LateSockets(const LateSockets&) = delete;
  LateSockets& operator=(const LateSockets&) = delete;

  // A ConnectPeer for `rank`.
  int Connect(int rank, int peer);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, int> made_;  // by rank and peer
};

}  // namespace tfring

#endif  // TESTS_CPP_TCP_SOCKETS_H_
