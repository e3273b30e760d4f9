// Ranks as threads that are connected by TCP on the loopback interface.
#ifndef TESTS_CPP_TCP_SOCKETS_H_
#define TESTS_CPP_TCP_SOCKETS_H_

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tfring {

// Returns sockets[i][j], rank i's connection to rank j, which is -1 for i == j.
std::vector<std::vector<int>> ConnectedSockets(int size);

// Makes a connection when the higher one of two ranks first asks for it.
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
