// Sends a sign of life of this process, even while its interpreter is busy.
#ifndef TFRING_OPS_RUNTIME_PULSE_H_
#define TFRING_OPS_RUNTIME_PULSE_H_

#include "absl/status/status.h"

namespace tfring {

// Starts a thread that sends a byte by `socket` every `seconds`, until the peer
// has closed the connection or the process ends.  Takes ownership of the
// socket.  A forked child sends nothing, and does not hold the connection.
//
// FailedPrecondition if this process has a pulse.  Thread-safe.
absl::Status StartPulse(int socket, double seconds);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_PULSE_H_
