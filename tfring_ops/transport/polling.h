// A transport that lets its owner poll something else while it waits.
#ifndef TFRING_OPS_TRANSPORT_POLLING_H_
#define TFRING_OPS_TRANSPORT_POLLING_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Forwards all calls to `inner`.  Calls `attend` before each Wait, Peek and
// Progress and, if `inner` has attendants, during them: at most every twenty
// microseconds, and for a small part of the time.  An error of `attend` becomes
// theirs.
// REQUIRES:  `attend` makes no call to this transport; `clock` outlives it.
std::unique_ptr<Transport> MakePollingTransport(
    std::unique_ptr<Transport> inner, std::function<absl::Status()> attend,
    const Clock& clock = SteadyClock());

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_POLLING_H_
