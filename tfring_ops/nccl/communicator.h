// A communicator of NCCL's; none of its calls blocks.
//
// While NCCL is busy, on the host or on the GPU, this rank polls the host's
// transport, which reports the loss of a peer, and the errors that NCCL has
// noticed by itself.  So no rank waits forever.  Its owner polls the work that
// NCCL has enqueued on the GPU (Poll), and the host's transport, too.
//
// Not thread-safe.
#ifndef TFRING_OPS_NCCL_COMMUNICATOR_H_
#define TFRING_OPS_NCCL_COMMUNICATOR_H_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/nccl/launch_order.h"
#include "tfring_ops/nccl/library.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class NcclCommunicator {
 public:
  // Creates a communicator of the ranks of `host`, which launches in the order
  // of `place`.  Collective over them, and an error of one rank is an error on
  // all.  No wait takes longer than `timeout_seconds` of its clock; 0 means no
  // limit.
  // REQUIRES: the arguments outlive the communicator.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      const NcclLibrary& nccl, const CudaDevice& device, Transport& host,
      const NcclUniqueId& id, LaunchPlace place, double timeout_seconds);

  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Calls ask(nccl, comm, stream), which enqueues collectives that NCCL may run
  // in any order or at once.  Returns when they are on the stream.
  template <typename Ask>
  absl::Status Group(const Ask& ask) {
    TFRING_RETURN_IF_ERROR(broken_);
    TFRING_ENTER_CONTEXT(driver_, device_.context());
    TFRING_ASSIGN_OR_RETURN(const LaunchOrder::Turn turn,
                            place_.Await(host_, timeout_seconds_));
    TFRING_RETURN_IF_ERROR(turn.Follow(device_.stream()));
    is_marked_ = false;
    TFRING_RETURN_IF_ERROR(nccl_.ncclGroupStart());
    const absl::Status asked = ask(nccl_, comm_, device_.stream());
    // End the group after an error, too: it belongs to the thread.
    const absl::Status ended = nccl_.ncclGroupEnd();
    TFRING_RETURN_IF_ERROR(asked);
    TFRING_RETURN_IF_ERROR(ended);
    TFRING_RETURN_IF_ERROR(Settle());
    return turn.Launched(launched_, device_.stream());
  }

  // See StreamCollectives.
  absl::Status Then(std::function<void()> done);
  int left() const { return static_cast<int>(marks_.size()); }
  absl::StatusOr<bool> Poll();
  absl::Status Finish();

  // Aborts the collectives in flight.  Every later call fails with `reason`.
  void Abort(const absl::Status& reason);

 private:
  // A point in the order of the stream.
  struct Mark {
    std::unique_ptr<CudaEvent> event;
    std::function<void()> done;
  };

  NcclCommunicator(const NcclLibrary& nccl, const CudaDriver& driver,
                   const CudaDevice& device, Transport& host, LaunchPlace place,
                   double timeout_seconds);

  absl::Status Open(const NcclUniqueId& id);
  // Returns true if NCCL's host code has finished its last call.
  absl::StatusOr<bool> Settled() const;
  absl::Status Settle();
  // Returns an error if `since` is too long ago.
  absl::Status CheckWait(Clock::time_point since) const;

  const NcclLibrary& nccl_;
  const CudaDriver& driver_;
  const CudaDevice& device_;
  Transport& host_;
  const LaunchPlace place_;
  const double timeout_seconds_;
  ncclComm_t comm_ = nullptr;
  std::shared_ptr<CudaEvent> launched_;  // after the last group
  std::deque<Mark> marks_;  // the points that the stream has not reached
  bool is_marked_ = true;   // whether there is a mark after the last collective
  // When the stream could begin the work before the first mark.
  Clock::time_point first_since_;
  // Free events, of earlier marks.
  std::vector<std::unique_ptr<CudaEvent>> events_;
  absl::Status broken_;
};

}  // namespace tfring

#endif  // TFRING_OPS_NCCL_COMMUNICATOR_H_
