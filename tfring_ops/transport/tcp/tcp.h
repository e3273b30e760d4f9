// Messages over TCP connections that the caller has made.  Nothing outlives the
// sockets, so the transport may be thrown away with its ranks.
//
// The loss of a rank is noticed at once if its machine is up, and within some
// seconds if the machine or the network to it is down, even if nothing is in
// flight to or from the rank.  Abort fails every other rank; the end of a
// transport fails only ranks that wait for its rank.  All this holds for
// connected ranks.
//
// Note [Later connections]
// A rank among many communicates with a few: the next one in the ring, and
// ranks at a distance of a power of two.  So a data channel has no connections
// at first, and makes one for the first message.  Until then the channel does
// not notice the loss or the abort of a peer; a rank that waits for it learns
// of that from the control channel, by the attendant.
//
// Note [TCP options]
// Data that nobody acknowledges for kUnacknowledgedMilliseconds ends the
// connection, and so does a peer that answers no probe for as long: TCP's own
// limits are minutes and hours.  A peer that accepts no data, because its
// process has stopped, is cut off, too.  An elastic job learns of both cases
// sooner, from the launcher.  A shorter limit would end connections of a busy
// link, in whose long queue a small message may be lost two or three times in a
// row.
#ifndef TFRING_OPS_TRANSPORT_TCP_TCP_H_
#define TFRING_OPS_TRANSPORT_TCP_TCP_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

inline constexpr int kUnacknowledgedMilliseconds = 5000;

// Returns a connection to a peer, which the caller then owns, or kNotYet if the
// peer has not done its part.  Never waits for the peer's computation.
using ConnectPeer = std::function<absl::StatusOr<int>(int peer)>;
inline constexpr int kNotYet = -1;

// Takes ownership of `sockets`, a connection for each peer.  The element of
// this rank is ignored.  For a peer with kNotYet, `connect` is called when the
// connection is needed.  Rank i is on machine `nodes[i]`.  A wait ends with
// TimedOut when its data has not moved for `timeout_seconds` of `clock`; 0
// means no limit.
//
// Unavailable or Internal if a socket cannot be set up; they are closed then.
absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(
    int rank, std::vector<int> nodes, const std::vector<int>& sockets,
    double timeout_seconds, const Clock& clock = SteadyClock(),
    ConnectPeer connect = nullptr);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_TCP_TCP_H_
