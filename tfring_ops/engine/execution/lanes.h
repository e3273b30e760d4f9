// An engine's collectives run in lanes: several of host memory, and one of a
// GPU, which is made when it is first needed.
//
// Submissions by any thread; all else by the engine's.
//
// Note [Several buckets in flight]
// Between nodes the wire is the limit, and a bucket alone leaves it idle while
// its first bytes are on their way, and its last ones.  So there are several
// lanes, each with a channel and a worker of its own, and allreduces take them
// by turns: a lane does the same work in the same order on every rank.  A
// worker is given the next one while it still has one, as to wake it takes
// long; for a small one it takes too long, which has its lane from the engine's
// thread if that is free.  All else waits until all lanes are free, and so runs
// after everything that was agreed before it.
//
// Note [Launched buckets]
// By NCCL (StreamCollectives) a bucket is done only when the GPU has done it,
// as nothing else tells that all ranks are well.  If the engine's thread waited
// for that before it launches the next one, the GPU would be idle meanwhile.
// So it launches buckets in a row, up to as many as may be in flight, and
// finishes each when the stream has done it.  The stream keeps the order of
// their writes, also to the fusion buffer.
//
// A launched bucket may wait for a rank that is lost, and the host must not
// wait for it without looking.  So work that makes the host wait for the GPU
// runs alone, after all that is launched and before the next bucket: the ring's
// collectives, since their deadlines would count the work before them; and what
// allocates or frees memory, where the driver may wait, without any deadline:
// neutral contributions, outputs of an allgather, a fusion buffer that grows.
//
// If the ring does all, there is no such gap: a bucket by CUDA's IPC is done
// when it is launched.  Staged copies cannot be launched ahead, nor messages of
// a CUDA-aware MPI, as the host sends data that the GPU has to write first.
#ifndef TFRING_OPS_ENGINE_EXECUTION_LANES_H_
#define TFRING_OPS_ENGINE_EXECUTION_LANES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/engine/execution/worker.h"
#include "tfring_ops/engine/lane.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// More channels for data, up to one for each bucket that may be on the wire.
// Collective.
absl::Status AddChannels(const Options& options, const ProcessSet& process_set,
                         std::vector<std::unique_ptr<Transport>>& channels);

// A lane and who works on it.
struct ExecutionLane {
  ExecutionLane(const Options& options, Lane lane)
      : lane(std::move(lane)),
        context(options, *this->lane.transport, *this->lane.kernels,
                CostsOf(this->lane),
                this->lane.stream == nullptr ? Memory::kHost : Memory::kDevice,
                this->lane.collectives.get()) {
    if (this->lane.costs) context.UseCosts(*this->lane.costs);
  }

  // The engine sees only how long it takes to enqueue a stream's work.
  static CostSource CostsOf(const Lane& lane) {
    if (lane.stream == nullptr) return CostSource::kMeasured;
    return lane.costs ? CostSource::kGiven : CostSource::kTypical;
  }

  // Fails all work of this rank and its peers on this lane.  The first call
  // counts.  By whoever has the lane.
  void Abort(const absl::Status& reason);

  Lane lane;
  ExecutionContext context;
  Timeline::Track track;  // of a lane with stream collectives
  // Why nothing more may run here: the peers' next messages may belong to
  // another bucket than this rank's next receive.  OK while all is well.
  absl::Status failure;
  // Has this lane while it has anything left to do.  Null: the engine's thread
  // has it.
  std::unique_ptr<Worker> worker;
};

class BucketTask;

class Lanes {
 public:
  // Makes a lane of host memory for each of `data`, in that order.  With
  // several, each has a worker, which calls `on_free` on its thread when it has
  // finished a task.
  // REQUIRES: `host_kernels` outlives this; `data` is not empty.
  Lanes(const Options& options,
        decltype(ProcessSet::make_device_lane) make_device_lane,
        std::vector<std::unique_ptr<Transport>> data,
        const Kernels& host_kernels, const std::function<void()>& on_free);
  ~Lanes();

  // A process has one GPU: InvalidArgument if `request` is on another one than
  // an earlier request.
  absl::Status CheckDevice(const CollectiveRequest& request);

  // Returns true if `request` may run beside others; see the Note.
  bool RunsBeside(const CollectiveRequest& request) const;
  // The lane for the next of these, agreed by all ranks.  Collective at the
  // first call.
  absl::StatusOr<ExecutionLane*> Next();
  // Returns true if that lane can take another, also if there is but one, and
  // the device's can take another that is launched.
  bool HasRoom() const;
  // Returns true if no worker and no device has anything left to do.
  bool idle() const;

  // Returns true if `task` may be launched behind others; see the Note.
  bool FollowsOthers(const BucketTask& task) const;
  // How many are launched and not done.
  int launched() const;
  // Finishes the buckets that the device has done, and returns true if there
  // are any.  An error is the end of all that are left.
  absl::StatusOr<bool> Poll();

  // The lane for work that runs alone, agreed by all ranks.  Collective at the
  // first call for a device; an error is the same on every rank, now and ever
  // after, unless Progress has one.
  // REQUIRES: idle(), unless the task of `request` follows others.
  absl::StatusOr<ExecutionLane*> Of(const CollectiveRequest& request);

  // Returns an error if the host's lane for such work has failed.
  absl::Status Progress() { return host_[0].lane.transport->Progress(); }

  // Aborts all lanes; the last call.  When it returns, nothing is at work on
  // entries' memory.
  void Abort(const absl::Status& reason);

  // After Abort: some memory may still be used, as Transport has it.
  bool HasAbandoned() const;
  // Never frees memory that messages have used.
  void KeepMemory();

 private:
  const Options& options_;
  const decltype(ProcessSet::make_device_lane) make_device_lane_;
  std::atomic<int32_t> device_{kHost};  // as soon as it is known
  std::deque<ExecutionLane> host_;
  size_t next_ = 0;           // of host_
  bool costs_known_ = false;  // to all of host_, where there are several
  std::unique_ptr<ExecutionLane> on_device_;
  absl::Status device_status_;  // why there is none
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_LANES_H_
