// Shared memory within a node beside any other transport.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_NODE_MEMORY_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_NODE_MEMORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

enum class SharedMemory { kNever, kWithinNodes };

// Messages between two ranks of a node (`others->node_of`) use shared memory,
// and the rest use `others`.  If a rank cannot share its memory, no rank does,
// and rank 0 warns.  `timeout_seconds` is as for MakeSharedMemoryTransport.
//
// The ranks agree by messages of `control`, by default `others`; if that fails,
// both are aborted.  Collective over the ranks of `control`.  Rank 0's
// `shared_memory` applies to all.
absl::StatusOr<std::unique_ptr<Transport>> ShareWithinNodes(
    std::unique_ptr<Transport> others, double timeout_seconds,
    SharedMemory shared_memory, Transport* control = nullptr);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_NODE_MEMORY_H_
