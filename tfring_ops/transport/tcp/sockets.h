// System calls on the sockets of the TCP transport.
#ifndef TFRING_OPS_TRANSPORT_TCP_SOCKETS_H_
#define TFRING_OPS_TRANSPORT_TCP_SOCKETS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tfring_ops/base/clock.h"

namespace tfring {

// The system's description of an errno.
std::string SystemError(int error);

// Makes a socket never block, close in programs that this process starts, and
// notice a lost peer: see Note [TCP options] in tcp.h.
absl::Status SetUpSocket(int socket);

// Returns the error that the socket has, which the next call on it would get;
// 0 for none.
int TakeError(int socket);

// Waits until the system has sent all data that was written to `socket`, the
// connection has ended, or it is `deadline`.
void WaitUntilSent(int socket, Clock::time_point deadline);

// Reads the bytes that have arrived, at most `size`; returns how many.
size_t ReadSome(int socket, char* data, size_t size);

// Reads the bytes that have arrived, and discards them.
void ReadAway(int socket, uint64_t size);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_TCP_SOCKETS_H_
