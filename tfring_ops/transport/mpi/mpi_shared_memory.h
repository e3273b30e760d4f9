// Shared memory within a node, MPI between nodes.
#ifndef TFRING_OPS_TRANSPORT_MPI_MPI_SHARED_MEMORY_H_
#define TFRING_OPS_TRANSPORT_MPI_MPI_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/transport/shared_memory/node_memory.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// MakeMpiTransport with shared memory within the nodes, by ShareWithinNodes.
// MakeMpiTransport's requirements hold here, too.
//
// Collective over the communicator.  Rank 0's `shared_memory` holds for all.
absl::StatusOr<std::unique_ptr<Transport>> MakeNodeTransport(
    int32_t comm, double timeout_seconds, SharedMemory shared_memory);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_MPI_MPI_SHARED_MEMORY_H_
