// Shared memory within a node, MPI between nodes.
#ifndef TFRING_OPS_TRANSPORT_MPI_MPI_SHARED_MEMORY_H_
#define TFRING_OPS_TRANSPORT_MPI_MPI_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

enum class SharedMemory { kNever, kWithinNodes };

// Messages between two ranks of a node go through shared memory, the rest by
// MakeMpiTransport, whose requirements hold here too.  Where a rank cannot
// share its memory, nobody does, and rank 0 warns.
//
// Collective over the communicator.  Rank 0's `shared_memory` holds for all.
absl::StatusOr<std::unique_ptr<Transport>> MakeNodeTransport(
    int32_t comm, double timeout_seconds, SharedMemory shared_memory);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_MPI_MPI_SHARED_MEMORY_H_
