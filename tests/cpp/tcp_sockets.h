// Ranks as threads that are connected by TCP on the loopback interface.
#ifndef TESTS_CPP_TCP_SOCKETS_H_
#define TESTS_CPP_TCP_SOCKETS_H_

#include <vector>

namespace tfring {

// sockets[i][j] is rank i's connection to rank j, and -1 where they are one.
std::vector<std::vector<int>> ConnectedSockets(int size);

}  // namespace tfring

#endif  // TESTS_CPP_TCP_SOCKETS_H_
