// A transport that fails on purpose, for tests.
#ifndef TFRING_OPS_TRANSPORT_FAULTY_H_
#define TFRING_OPS_TRANSPORT_FAULTY_H_

#include <cstdint>
#include <memory>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Passes everything on to `inner`, but the `failing_operation`-th operation
// (StartSend, StartRecv and Peek count, from 1), and all that follow it, fail
// with Unavailable.
std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> inner,
                                               int64_t failing_operation);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_FAULTY_H_
