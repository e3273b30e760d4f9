// The order of work on the streams of a GPU.
//
// Note [The order on a GPU]
//
// The framework enqueues work on a stream and runs ahead of it; the engine has
// a stream of its own.  The host waits for neither:
//
// 1. The outputs are allocated.  Only then,
// 2. `ready` is recorded on the framework's stream: before it are the work that
//    makes the inputs, and all that may still use the outputs' memory, which
//    the allocator gives out again while that is enqueued.
// 3. The engine's stream waits for `ready`, and works.
// 4. `finished` is recorded on the engine's stream, and the framework's waits
//    for it.  Only then,
// 5. the entry is done: its tensors are released, and the work that reads the
//    outputs is enqueued.
//
// By NCCL an entry is done only when the GPU has done it (Note [Launched
// buckets] in engine/execution/lanes.h).  Then step 4 is left out: the
// framework's stream has nothing to wait for.
//
// An output whose size is known only in 3 is allocated there, and then the
// engine's stream waits for the framework's once more.
#ifndef TFRING_OPS_RUNTIME_STREAM_ORDER_H_
#define TFRING_OPS_RUNTIME_STREAM_ORDER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Makes `entry` one of the GPU `device`, of work on the framework's `stream`: a
// CUstream.  Steps 2 to 4.
// REQUIRES: step 1; entry.allocate_output is set.
absl::Status OrderStreams(void* stream, int32_t device, TensorEntry& entry);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_STREAM_ORDER_H_
