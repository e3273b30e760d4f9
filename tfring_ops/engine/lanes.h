// Where an engine's collectives run: the lane of host memory, and that of a
// GPU, which is made when it is first needed.
//
// Submissions by any thread; all else by the engine's.
#ifndef TFRING_OPS_ENGINE_LANES_H_
#define TFRING_OPS_ENGINE_LANES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/executor.h"
#include "tfring_ops/engine/messages.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

class Lanes {
 public:
  // A lane and who works on it.
  struct Open {
    Open(const Options& options, Lane lane)
        : lane(std::move(lane)),
          executor(
              options, *this->lane.transport, *this->lane.kernels,
              // A stream's work takes no time to ask for.
              this->lane.stream == nullptr ? CostSource::kMeasured
                                           : CostSource::kTypical,
              this->lane.stream == nullptr ? Memory::kHost : Memory::kDevice,
              this->lane.collectives.get()) {}

    Lane lane;
    Executor executor;
  };

  // Takes `process_set.data`.
  // REQUIRES: `host_kernels` outlives this.
  Lanes(const Options& options, ProcessSet& process_set,
        const Kernels& host_kernels);

  // A process has one GPU: InvalidArgument if `request` is on another one than
  // an earlier request.
  absl::Status CheckDevice(const CollectiveRequest& request);

  // The lane of `request`, agreed by all ranks.  Collective at the first call
  // for a device; an error is the same on every rank, now and ever after.
  absl::StatusOr<Open*> Of(const CollectiveRequest& request);

  // Of all lanes.  When it returns, nothing is at work on entries' memory.
  void Abort(const absl::Status& reason);

 private:
  const Options& options_;
  const decltype(ProcessSet::make_device_lane) make_device_lane_;
  std::atomic<int32_t> device_{kHost};  // as soon as it is known
  Open host_;
  std::unique_ptr<Open> on_device_;
  absl::Status device_status_;  // why there is none
};

// Runs `bucket` of `entries`, which `contributors` ranks take part in, from
// on_start to on_finish.
absl::Status RunBucket(Lanes::Open& lane, const Verdict::Bucket& bucket,
                       absl::Span<TensorEntry* const> entries, int contributors,
                       const Members& members);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_LANES_H_
