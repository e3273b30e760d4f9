// If NCCL does some of a process's collectives on GPUs, its process sets launch
// them in one order.
//
// A collective of NCCL's holds a part of the GPU while it waits for its ranks.
// If two communicators share two ranks, and these launch them in different
// orders, each rank may hold its GPU for a collective that its peer has not
// launched: a deadlock, which NCCL leaves to its callers.  So the ranks of a
// communicator agree on a number for each launch.  A process launches in the
// order of these numbers, and each launch waits on the GPU for the one before
// it.
//
// Note [Why the ring takes turns]
// A stream of the ring's waits only for work that other ranks have enqueued, so
// it never blocks a rank forever; but it does wait.  The streams of a process
// share the queues of its GPU (CUDA_DEVICE_MAX_CONNECTIONS).  If a collective
// of NCCL's is behind such a wait in the queue of one rank, and the awaited
// work is behind the same collective on another rank, both wait forever.  So a
// collective of the ring's has a number, too, and enqueues all its work in its
// turn.  On the GPU it waits for no other launch.
//
// Note [Numbers of launches]
// The order is made like a multicast's in Skeen's algorithm (Birman and Joseph,
// "Reliable communication in the presence of failures", 1987).  Each rank
// proposes a number above all numbers that its process has seen, and the
// highest proposal becomes the launch's number.  Until that is known, the
// rank's own proposal, which is never higher, takes its place.  So the launch
// that is first by number, and then by process set, stays first: later launches
// have higher numbers.  A rank waits only for lower numbers, so ranks never
// wait for each other in a cycle.
//
// Thread-safe.
#ifndef TFRING_OPS_NCCL_LAUNCH_ORDER_H_
#define TFRING_OPS_NCCL_LAUNCH_ORDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class LaunchOrder {
 public:
  // The right to launch, for the lifetime of this object.  A turn that is
  // awaited within another of the same process set is a part of it.
  class Turn {
   public:
    Turn() = default;  // there is one communicator, which always has the turn
    Turn(Turn&& other) noexcept
        : order_(std::exchange(other.order_, nullptr)),
          process_set_(other.process_set_),
          is_part_(other.is_part_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (order_ != nullptr && !is_part_) order_->Leave(process_set_);
    }

    // Makes work that is enqueued on `stream` from now on wait for the previous
    // launch.
    absl::Status Follow(void* stream) const;
    // Says that the work enqueued on `stream` so far is this launch.  `event`
    // belongs to the stream's context.
    absl::Status Launched(const std::shared_ptr<CudaEvent>& event,
                          void* stream) const;

   private:
    friend class LaunchOrder;
    Turn(LaunchOrder* order, int process_set, bool is_part)
        : order_(order), process_set_(process_set), is_part_(is_part) {}

    LaunchOrder* order_ = nullptr;
    int process_set_ = 0;
    bool is_part_ = false;
  };

  // Says that there are several communicators from now on.  Before this call a
  // turn costs nothing.  Each rank of a process set calls it at the same place
  // among its launches.
  void Begin() { several_ = true; }
  bool begun() const { return several_; }
  // Call it before `event` is destroyed: the launch that it marks is complete.
  void Forget(const std::shared_ptr<CudaEvent>& event);

  // Returns when `process_set` has the turn; its ranks are those of `host`.
  // Collective over them, unless there is one process set or this one has the
  // turn already.  No wait for a rank is longer than `timeout_seconds` of
  // `clock`; 0 means no limit.
  // REQUIRES: the order outlives the turn; a process set calls this on one
  // thread at a time.
  absl::StatusOr<Turn> Await(int process_set, Transport& host,
                             double timeout_seconds,
                             const Clock& clock = SteadyClock());

 private:
  bool HasTurn(int process_set);
  // Enters the queue with a proposed number, and returns it.
  int64_t Enter(int process_set);
  void Agree(int process_set, int64_t number);
  // Begins the turn if the process set is first in the queue.
  bool Begins(int process_set);
  void Leave(int process_set);

  std::atomic<bool> several_{false};
  std::mutex mutex_;
  int64_t highest_ = 0;           // the highest number seen
  std::map<int, int64_t> queue_;  // numbers by process set
  std::optional<int> has_turn_;   // the first process set, once that is known
  std::shared_ptr<CudaEvent> last_;
};

// A process set's place in the order.  Without an order, the set is the only
// one of the process.
struct LaunchPlace {
  absl::StatusOr<LaunchOrder::Turn> Await(Transport& host,
                                          double timeout_seconds) const {
    if (order == nullptr) return LaunchOrder::Turn();
    return order->Await(process_set, host, timeout_seconds, *clock);
  }

  std::shared_ptr<LaunchOrder> order;
  int process_set = 0;
  // The clock of its ranks' waits, which outlives them.
  const Clock* clock = &SteadyClock();
};

// Returns the function for Lane::await_turn, which waits for the turn of
// `place` as LaunchOrder::Await does.
// REQUIRES: `host` outlives the result.
std::function<absl::StatusOr<std::shared_ptr<void>>()> TakesTurns(
    LaunchPlace place, Transport& host, double timeout_seconds);

}  // namespace tfring

#endif  // TFRING_OPS_NCCL_LAUNCH_ORDER_H_
