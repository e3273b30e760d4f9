// Broadcast along the ring: a pipeline of segments from the root to the rank
// before it.
#ifndef TFRING_OPS_ALGORITHMS_RING_BROADCAST_H_
#define TFRING_OPS_ALGORITHMS_RING_BROADCAST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// `data` on every rank = `data` on rank `root`.
absl::Status RingBroadcast(const RingContext& context, void* data,
                           int64_t bytes, int root);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_BROADCAST_H_
