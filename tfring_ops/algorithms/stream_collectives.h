// The ring's collectives, done by another library on a device's stream.
//
// Not thread-safe.  Every rank asks for the same collectives in the same order.
// Except for Finish, a call returns when its work is enqueued on the stream, in
// the order of the kernels that use the same stream; the caller may then reuse
// the call's host memory.  After an error, call Abort before the buffers are
// touched.
//
// Only when the stream has done its work is it known that nothing has gone
// wrong on any rank.
#ifndef TFRING_OPS_ALGORITHMS_STREAM_COLLECTIVES_H_
#define TFRING_OPS_ALGORITHMS_STREAM_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/algorithms/ring/staged_allreduce.h"
#include "tfring_ops/base/types.h"

namespace tfring {

class StreamCollectives {
 public:
  virtual ~StreamCollectives() = default;

  // Returns true if Allreduce, StagedAllreduce and ReduceScatterOwn accept
  // elements of this type and `op`.  The answer is the same on every rank.  The
  // other functions accept every type.
  virtual bool Reduces(DataType dtype, ReduceOp op) const = 0;

  // These have the contracts of RingAllreduce, StagedRingAllreduce,
  // RingReduceScatterOwn, RingAllgather and RingBroadcast.
  virtual absl::Status Allreduce(const RingBuffers& buffers) = 0;
  virtual absl::Status StagedAllreduce(const RingBuffers& buffers,
                                       absl::Span<std::byte> stage,
                                       Staging& staging) = 0;
  virtual absl::Status ReduceScatterOwn(const RingBuffers& buffers,
                                        absl::Span<const Range> chunks) = 0;
  virtual absl::Status Allgather(const void* input, void* output,
                                 absl::Span<const int64_t> bytes_of_rank) = 0;
  virtual absl::Status Broadcast(void* data, int64_t bytes, int root) = 0;

  // Registers `done`.  Poll or Finish calls it once the stream has completed
  // all work that was enqueued before this call.
  virtual absl::Status Then(std::function<void()> done) = 0;

  // The number of registered functions that have not been called.
  virtual int left() const = 0;

  // Calls the functions that are due, in their order, and returns true if there
  // are any.  An error fails all functions that are left: this rank or another
  // one has failed, or the first of them takes too long.  Poll does not use the
  // transport, so it may be called while another call waits.
  virtual absl::StatusOr<bool> Poll() = 0;

  // Returns when the stream has completed all its work, and calls the functions
  // that are left.
  virtual absl::Status Finish() = 0;

  // Aborts the work in flight on the stream; its results are undefined.  Every
  // later call fails with `reason`, and the remaining functions are never
  // called.
  virtual void Abort(const absl::Status& reason) = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_STREAM_COLLECTIVES_H_
