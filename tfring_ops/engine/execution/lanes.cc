#include "tfring_ops/engine/execution/lanes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/execution/bucket_task.h"

namespace tfring {

absl::Status AddChannels(const Options& options, const ProcessSet& process_set,
                         std::vector<std::unique_ptr<Transport>>& channels) {
  const bool wire_is_the_limit = Layout::Of(*channels[0]).nodes > 1;
  while (process_set.make_data && wire_is_the_limit &&
         static_cast<int64_t>(channels.size()) < options.buckets_in_flight) {
    TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> channel,
                            process_set.make_data());
    channels.push_back(std::move(channel));
  }
  return absl::OkStatus();
}

void ExecutionLane::Abort(const absl::Status& reason) {
  if (!failure.ok()) return;
  failure = reason;
  // Abort the collectives first: the stream may wait for a rank that will not
  // come.
  if (lane.collectives != nullptr) lane.collectives->Abort(reason);
  lane.transport->Abort(reason);
}

Lanes::Lanes(const Options& options,
             decltype(ProcessSet::make_device_lane) make_device_lane,
             std::vector<std::unique_ptr<Transport>> data,
             const Kernels& host_kernels, const Clock& clock,
             const std::function<void()>& on_free)
    : options_(options), make_device_lane_(std::move(make_device_lane)) {
  for (std::unique_ptr<Transport>& transport : data) {
    Lane lane;
    lane.kernels = &host_kernels;
    lane.transport = std::move(transport);
    host_.emplace_back(options, std::move(lane), clock);
    if (data.size() > 1) {
      host_.back().worker = std::make_unique<Worker>(on_free);
    }
  }
}

Lanes::~Lanes() {
  // The destructor of its transport waits for other ranks, and polls meanwhile.
  const std::unique_ptr<ExecutionLane> ends = std::move(on_device_);
}

absl::Status Lanes::CheckDevice(const CollectiveRequest& request) {
  if (!OnDevice(request)) return absl::OkStatus();
  int32_t known = kHost;
  if (device_.compare_exchange_strong(known, request.device) ||
      known == request.device) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Name(request.kind), " of '", request.name, "': its tensors are on GPU ",
      request.device, ", and those before it were on GPU ", known,
      ". A rank works with one GPU: start one for each."));
}

bool Lanes::RunsOnWorker(const CollectiveRequest& request) const {
  return host_.size() > 1 && CollectiveOf(request.kind).is_fusible() &&
         !OnDevice(request);
}

absl::StatusOr<ExecutionLane*> Lanes::Next() {
  if (!costs_known_) {
    // Measure while nothing else is on the wire.
    TFRING_ASSIGN_OR_RETURN(const Costs costs,
                            host_[0].context.allreduce().Measured());
    for (ExecutionLane& lane : host_) lane.context.allreduce().Use(costs);
    costs_known_ = true;
  }
  ExecutionLane& lane = host_[next_];
  next_ = (next_ + 1) % host_.size();
  return &lane;
}

bool Lanes::HasRoom() const {
  const ExecutionLane& lane = host_[next_];
  return (lane.worker == nullptr || lane.worker->left() < 2) &&
         launched() < options_.buckets_in_flight;
}

bool Lanes::idle() const {
  for (const ExecutionLane& lane : host_) {
    if (lane.worker != nullptr && lane.worker->left() > 0) return false;
  }
  return launched() == 0;
}

bool Lanes::FollowsOthers(const BucketTask& task) const {
  return OnDevice(task.first()) && on_device_ != nullptr &&
         CollectiveOf(task.first().kind)
             .OnlyLaunches(on_device_->context, task.first()) &&
         !task.has_neutral_contributions();
}

int Lanes::launched() const {
  return on_device_ == nullptr || on_device_->lane.collectives == nullptr
             ? 0
             : on_device_->lane.collectives->left();
}

absl::StatusOr<bool> Lanes::Poll() {
  if (launched() == 0) return false;
  return on_device_->lane.collectives->Poll();
}

absl::StatusOr<ExecutionLane*> Lanes::Of(const CollectiveRequest& request) {
  if (!OnDevice(request)) return &host_[0];
  if (!device_status_.ok()) return device_status_;
  if (on_device_ == nullptr) {
    absl::StatusOr<Lane> lane = absl::UnimplementedError(
        "this engine has no way to reduce tensors on a GPU");
    if (make_device_lane_) {
      lane = make_device_lane_(options_, device_, *host_[0].lane.transport);
    }
    device_status_ = lane.status();
    if (!lane.ok()) return device_status_;
    on_device_ = std::make_unique<ExecutionLane>(options_, *std::move(lane));
  }
  return on_device_.get();
}

bool Lanes::HasAbandoned() const {
  for (const ExecutionLane& lane : host_) {
    if (lane.lane.transport->HasAbandoned()) return true;
  }
  return on_device_ != nullptr && on_device_->lane.transport->HasAbandoned();
}

void Lanes::KeepMemory() {
  for (ExecutionLane& lane : host_) lane.context.KeepMemory();
  if (on_device_ != nullptr) on_device_->context.KeepMemory();
}

void Lanes::Abort(const absl::Status& reason) {
  // Workers may wait for one another across ranks, so abort all lanes before
  // waiting for any.
  for (ExecutionLane& lane : host_) {
    if (lane.worker == nullptr) {
      lane.Abort(reason);
    } else {
      lane.worker->Add([&lane, reason] { lane.Abort(reason); });
    }
  }
  for (ExecutionLane& lane : host_) lane.worker.reset();
  if (on_device_ == nullptr) return;
  on_device_->Abort(reason);
  // Tasks that are not finished by now have failed, too.
  if (on_device_->lane.finish && !on_device_->lane.transport->HasAbandoned()) {
    on_device_->lane.finish().IgnoreError();
  }
}

}  // namespace tfring
