// If NCCL does some of a process's collectives on GPUs, its process sets launch
// them in one order.
//
// A collective of NCCL's holds a part of the GPU while it waits for its ranks.
// If two communicators share two ranks, and these launch them in different
// orders, each rank may hold its GPU for a collective that its peer has not
// launched: a deadlock, which NCCL leaves to its callers.  So the ranks of a
// communicator agree on a number for each launch, and a process launches by
// these numbers, on its GPU, too, each behind the one before.
//
// Note [Why the ring takes turns]
// A stream of the ring's waits only for work that other ranks have enqueued, so
// that it blocks no rank for ever, and yet it waits.  The streams of a process
// share the queues of its GPU (CUDA_DEVICE_MAX_CONNECTIONS).  If a collective
// of NCCL's is behind such a wait in the queue of one rank, and the awaited
// work is behind the same collective on another rank, both wait forever.  So a
// collective of the ring's has a number, too, and asks the GPU for all of it in
// its turn.  It follows no other one on the GPU.
//
// Note [Numbers of launches]
// The order is made like a multicast's in Skeen's algorithm (Birman and Joseph,
// "Reliable communication in the presence of failures", 1987).  Each rank
// proposes a number above all that its process has seen, and the highest of
// them is the launch's.  Until that is known, the proposal takes its place; the
// number is never below it.  So the launch that is first by number, and then by
// process set, stays first: later ones have higher numbers.  A rank waits for
// lower numbers alone, and so ranks never wait for each other in a cycle.
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
  // The right to launch, until it ends.  One that is awaited within another of
  // the same process set is a part of it.
  class Turn {
   public:
    Turn() = default;  // there is one communicator, whose turn it always is
    Turn(Turn&& other) noexcept
        : order_(std::exchange(other.order_, nullptr)),
          process_set_(other.process_set_),
          is_part_(other.is_part_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (order_ != nullptr && !is_part_) order_->Leave(process_set_);
    }

    // Work enqueued on `stream` from now on waits for the launch before.
    absl::Status Follow(void* stream) const;
    // The work enqueued on `stream` so far is this launch; `event` is of its
    // context.
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

  // From now on there are several communicators; before, a turn costs nothing.
  // Each rank of a process set calls it at the same place among its launches.
  void Begin() { several_ = true; }
  bool begun() const { return several_; }
  // Called before `event` is destroyed: a launch that it marked is over.
  void Forget(const std::shared_ptr<CudaEvent>& event);

  // Returns when it is the turn of `process_set`, whose ranks are those of
  // `host`.  Collective over them, unless there is one process set or this one
  // has its turn.  No wait for a rank is longer than `timeout_seconds` of
  // `clock`; 0 is no limit.
  // REQUIRES: the order outlives the turn; a process set calls it on one thread
  // at a time.
  absl::StatusOr<Turn> Await(int process_set, Transport& host,
                             double timeout_seconds,
                             const Clock& clock = SteadyClock());

 private:
  bool HasTurn(int process_set);
  // Enters the queue with a proposal, which is returned.
  int64_t Enter(int process_set);
  void Agree(int process_set, int64_t number);
  // Has the turn begin, if it is the first.
  bool Begins(int process_set);
  void Leave(int process_set);

  std::atomic<bool> several_{false};
  std::mutex mutex_;
  int64_t highest_ = 0;           // number seen
  std::map<int, int64_t> queue_;  // numbers by process set
  std::optional<int> has_turn_;   // who is first, once that is known
  std::shared_ptr<CudaEvent> last_;
};

// A process set's place in the order.  Without one, it is the only one of the
// process.
struct LaunchPlace {
  absl::StatusOr<LaunchOrder::Turn> Await(Transport& host,
                                          double timeout_seconds) const {
    if (order == nullptr) return LaunchOrder::Turn();
    return order->Await(process_set, host, timeout_seconds, *clock);
  }

  std::shared_ptr<LaunchOrder> order;
  int process_set = 0;
  // For its ranks' waits; outlives them.
  const Clock* clock = &SteadyClock();
};

// For Lane::await_turn: waits for the turn of `place`, as LaunchOrder::Await.
// REQUIRES: `host` outlives what is returned.
std::function<absl::StatusOr<std::shared_ptr<void>>()> TakesTurns(
    LaunchPlace place, Transport& host, double timeout_seconds);

}  // namespace tfring

#endif  // TFRING_OPS_NCCL_LAUNCH_ORDER_H_
