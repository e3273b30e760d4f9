// A transport that lets its owner poll something else while it waits.
#ifndef TFRING_OPS_TRANSPORT_POLLING_H_
#define TFRING_OPS_TRANSPORT_POLLING_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Forwards all calls to `inner`, and calls `attend` before a Wait, Peek or
// Progress and, if `inner` has attendants, while they last: every twenty
// microseconds at most, and for a small part of the time.  Its error is theirs.
// REQUIRES: `attend` makes no call to this transport; `clock` outlives it.
std::unique_ptr<Transport> MakePollingTransport(
    std::unique_ptr<Transport> inner, std::function<absl::Status()> attend,
    const Clock& clock = SteadyClock());

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_POLLING_H_
