// An engine's collectives run in lanes: several of host memory, and one of a
// GPU, which is made when it is first needed.
//
// CheckDevice may be called on any thread, everything else by the driver alone.
//
// Note [Several buckets in flight]
// Between nodes the wire is the limit, and one bucket at a time leaves it idle
// while the first and the last bytes are on their way.  So there are several
// lanes, each with a channel and a worker of its own.  Allreduces take the
// lanes in turn: a lane does the same work in the same order on every rank.  It
// takes long to wake a worker, so a worker is given its next bucket before it
// has finished the last one.  A small bucket is not worth the wake-up: it runs
// on the driver, if its lane is free.  All other work waits until all lanes are
// free, and so runs after everything that was agreed before it.
//
// Note [Launched buckets]
// A bucket that NCCL reduces (StreamCollectives) is complete only when the GPU
// has executed it, because nothing else tells that all ranks are well.  If the
// driver waited for that before it launches the next bucket, the GPU would be
// idle meanwhile.  So the driver launches buckets in a row, as many as may be
// in flight, and finishes each when the stream has executed it.  The stream
// orders their writes, also to the fusion buffer.
//
// A launched bucket may wait for a lost rank, and the host must not wait for it
// without checking for that.  So work that makes the host wait for the GPU runs
// alone, after everything that is launched and before the next bucket.  Such
// work is the ring's collectives, because their deadlines would include the
// work before them; and everything that allocates or frees memory, in which the
// driver may wait without any deadline (neutral contributions, outputs of an
// allgather, a fusion buffer that grows).
//
// With the ring alone there is no such gap: a bucket that goes through CUDA's
// IPC is complete when it is launched.  Staged copies cannot be launched ahead,
// and messages of a CUDA-aware MPI cannot either: the host sends data that the
// GPU has to write first.
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
#include "tfring_ops/base/clock.h"
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

// Adds data channels until there is one for each bucket in flight.  Collective.
absl::Status AddChannels(const Options& options, const ProcessSet& process_set,
                         std::vector<std::unique_ptr<Transport>>& channels);

// A lane and the worker that runs its tasks.
struct ExecutionLane {
  ExecutionLane(const Options& options, Lane lane,
                const Clock& clock = SteadyClock())
      : lane(std::move(lane)),
        context(options, *this->lane.transport, *this->lane.kernels,
                CostsOf(this->lane),
                this->lane.stream == nullptr ? Memory::kHost : Memory::kDevice,
                this->lane.collectives.get(), clock) {
    if (this->lane.costs) context.allreduce().Use(*this->lane.costs);
  }

  // Costs of a stream cannot be measured: the engine sees only how long it
  // takes to enqueue work.
  static CostSource CostsOf(const Lane& lane) {
    if (lane.stream == nullptr) return CostSource::kMeasured;
    return lane.costs ? CostSource::kGiven : CostSource::kTypical;
  }

  // Fails all work of this rank and its peers on this lane.  The first call
  // counts.  Only the thread that runs the lane's work may call it.
  void Abort(const absl::Status& reason);

  Lane lane;
  ExecutionContext context;
  Timeline::Track track;  // used if the lane has stream collectives
  // The first error, after which nothing may run here: the peers' next messages
  // may belong to another bucket than this rank's next receive.
  absl::Status failure;
  // Runs the lane's work, while it has any.  If null, the driver runs it.
  std::unique_ptr<Worker> worker;
};

class BucketTask;

class Lanes {
 public:
  // Makes a lane of host memory for each of `data`, in that order.  With
  // several, each has a worker, which calls `on_free` on its thread when it has
  // finished a task.  Costs of links are measured by `clock`.
  // REQUIRES: `host_kernels` and `clock` outlive this; `data` is not empty.
  Lanes(const Options& options,
        decltype(ProcessSet::make_device_lane) make_device_lane,
        std::vector<std::unique_ptr<Transport>> data,
        const Kernels& host_kernels, const Clock& clock,
        const std::function<void()>& on_free);
  ~Lanes();

  // A process has one GPU: InvalidArgument if `request` is on another one than
  // an earlier request.
  absl::Status CheckDevice(const CollectiveRequest& request);

  // Returns true if `request` may be in flight with others; see Note [Several
  // buckets in flight].
  bool RunsOnWorker(const CollectiveRequest& request) const;
  // Returns the lane for the next such request, which is the same on all ranks.
  // Collective at the first call.
  absl::StatusOr<ExecutionLane*> Next();
  // Returns true if that lane, and the device's, can take another bucket.
  bool HasRoom() const;
  // Returns true if no worker and no device has anything left to do.
  bool idle() const;

  // Returns true if `task` may be launched behind others; see Note [Launched
  // buckets].
  bool FollowsOthers(const BucketTask& task) const;
  // Returns how many buckets are launched and not complete.
  int launched() const;
  // Finishes the buckets that the device has executed, and returns true if
  // there were any.  After an error the others stay unfinished.
  absl::StatusOr<bool> Poll();

  // Returns the lane for work that runs alone, which is the same on all ranks.
  // Collective at the first call for a device.  Unless Progress fails, an error
  // is the same on every rank and in every later call.
  // REQUIRES: idle(), unless the task of `request` follows others.
  absl::StatusOr<ExecutionLane*> Of(const CollectiveRequest& request);

  // Returns an error if the host's lane for such work has failed.
  absl::Status Progress() { return host_[0].lane.transport->Progress(); }

  // Aborts all lanes; the last call.  When it returns, nothing is at work on
  // entries' memory.
  void Abort(const absl::Status& reason);

  // Tells, after Abort, whether messages may still use memory; see Transport.
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
