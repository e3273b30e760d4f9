// Orders the work on the streams of a GPU.
//
// Note [The order on a GPU]
//
// The framework enqueues work on a stream and runs ahead of it; the engine has
// a stream of its own.  The host waits for neither:
//
// 1. The outputs are allocated.  Only then,
// 2. `ready` is recorded on the framework's stream, after the work that makes
//    the inputs and all work that may still use the outputs' memory: the
//    allocator reuses memory while such work is only enqueued.
// 3. The engine's stream waits for `ready`, and works.
// 4. `finished` is recorded on the engine's stream, and the entry is done.
// 5. The collector makes its own stream wait for `finished`.  Only then,
// 6. the entry's tensors are released, and the work that reads the outputs is
//    enqueued.
//
// Work that the framework enqueues between 2 and 5, such as the rest of
// backpropagation, waits for nothing.
//
// If NCCL reduces an entry, it is done only when the GPU has executed it (Note
// [Launched buckets] in engine/execution/lanes.h).  Then there is no
// `finished`, and nothing to wait for.
//
// If an output's size is known only in 3, it is allocated there, and then the
// engine's stream waits for the framework's once more.
#ifndef TFRING_OPS_RUNTIME_STREAM_ORDER_H_
#define TFRING_OPS_RUNTIME_STREAM_ORDER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/cuda.h"

namespace tfring {

// The streams and events of one entry.
class StreamOrder {
 public:
  // Makes `entry` wait for, and be waited for by, the framework's `stream` (a
  // CUstream) on the GPU `device`: steps 2 to 4.
  // REQUIRES: step 1; entry.allocate_output is set.
  static absl::StatusOr<std::shared_ptr<StreamOrder>> Of(void* stream,
                                                         int32_t device,
                                                         TensorEntry& entry);

  // The functions below are for an entry that is done, and are thread-safe.

  // Returns false if the GPU had completed the work when the entry was done.
  bool has_work() const { return finished_ != nullptr; }
  // Step 5.
  // REQUIRES: has_work().
  absl::Status Await(void* stream) const { return finished_->Await(stream); }
  // Returns true if the GPU has done that work.
  // REQUIRES: has_work().
  absl::StatusOr<bool> Done() const { return finished_->Done(); }

 private:
  explicit StreamOrder(void* stream) : framework_stream_(stream) {}

  void* const framework_stream_;
  void* engine_stream_ = nullptr;  // Set in step 3.
  std::unique_ptr<CudaEvent> ready_;
  std::unique_ptr<CudaEvent> finished_;  // Set in step 4.
};

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_STREAM_ORDER_H_
