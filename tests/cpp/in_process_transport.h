// Ranks as threads of one process, for tests.
#ifndef TESTS_CPP_IN_PROCESS_TRANSPORT_H_
#define TESTS_CPP_IN_PROCESS_TRANSPORT_H_

#include <memory>
#include <vector>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Transports for ranks 0 to size - 1 that communicate through memory.
//
// Rendezvous semantics, the strictest that MPI may choose: a send completes
// only when its receive has copied it, so that an algorithm that leans on
// eager buffers hangs here.  Instead of hanging, Wait gives DeadlineExceeded
// after a few seconds.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int size);

// The same, with rank r on node `nodes[r]`.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(
    const std::vector<int>& nodes);

}  // namespace tfring

#endif  // TESTS_CPP_IN_PROCESS_TRANSPORT_H_
