// Messages over TCP connections that the caller has made: a transport that may
// be thrown away with its ranks, as nothing outlives its sockets.
//
// A rank that is lost is heard at once if its machine lives, and within some
// seconds if that, or the way to it, is gone: also where nothing is in flight
// to or from it.  Abort fails every other rank; the end of a transport fails
// only those that wait for its rank.  All this is for ranks that are connected.
//
// Note [Later connections]
// A rank among many talks to a few: the next in the ring, and ranks at a
// distance of a power of two.  So a channel for data has no connections at
// first, and makes one for the first message.  Until then a rank hears nothing
// of its peer by this channel; who waits for a rank that is lost, or that has
// aborted, hears of it by the attendant, from the channel of control.
//
// Note [TCP options]
// Data that nobody acknowledges for kUnacknowledgedMilliseconds ends the
// connection, and so does a peer that answers no probe for as long: TCP's own
// limits are minutes and hours.  A peer that takes no more data, as its process
// has stopped, is cut off, too.  An elastic job hears of either sooner, from
// the launcher; a shorter limit would end connections of a busy link, on whose
// long queue a small message is lost two or three times one after the other.
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

// Returns a connection to a peer, which is the caller's then; kNotYet if the
// peer has yet to do its part.  Never waits for the peer's computation.
using ConnectPeer = std::function<absl::StatusOr<int>(int peer)>;
inline constexpr int kNotYet = -1;

// Takes `sockets`: by peer, a connection to it; nothing for this rank itself,
// and kNotYet where `connect` is to be asked for it, when it is needed. Rank i
// is on machine `nodes[i]`.  A wait ends with TimedOut when its data has not
// moved for `timeout_seconds` of `clock`; 0 is never.
//
// Unavailable or Internal if a socket cannot be set up; they are closed then.
absl::StatusOr<std::unique_ptr<Transport>> MakeTcpTransport(
    int rank, std::vector<int> nodes, const std::vector<int>& sockets,
    double timeout_seconds, const Clock& clock = SteadyClock(),
    ConnectPeer connect = nullptr);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_TCP_TCP_H_
