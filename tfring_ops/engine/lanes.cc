#include "tfring_ops/engine/lanes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {

Lanes::Lanes(const Options& options, ProcessSet& process_set,
             const Kernels& host_kernels)
    : options_(options),
      make_device_lane_(process_set.make_device_lane),
      host_(options, Lane{nullptr, nullptr, &host_kernels,
                          std::move(process_set.data), nullptr}) {}

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

absl::StatusOr<Lanes::Open*> Lanes::Of(const CollectiveRequest& request) {
  if (!OnDevice(request)) return &host_;
  if (!device_status_.ok()) return device_status_;
  if (on_device_ == nullptr) {
    if (!make_device_lane_) {
      device_status_ = absl::UnimplementedError(
          "this engine has no way to reduce tensors on a GPU");
      return device_status_;
    }
    // Where this rank has joined, and has not used its GPU: its first one.
    const int32_t device = std::max(device_.load(), 0);
    absl::StatusOr<Lane> lane =
        make_device_lane_(options_, device, *host_.lane.transport);
    if (!lane.ok()) {
      device_status_ = lane.status();
      return device_status_;
    }
    on_device_ = std::make_unique<Open>(options_, *std::move(lane));
  }
  return on_device_.get();
}

void Lanes::Abort(const absl::Status& reason) {
  host_.lane.transport->Abort(reason);
  if (on_device_ == nullptr) return;
  // First: until then the stream may wait for a rank that will not come.
  if (on_device_->lane.collectives != nullptr) {
    on_device_->lane.collectives->Abort(reason);
  }
  on_device_->lane.transport->Abort(reason);
  // What has not been done by now has failed, too.
  if (on_device_->lane.finish) on_device_->lane.finish().IgnoreError();
}

namespace {

absl::Status Move(Executor& executor, const Verdict::Bucket& bucket,
                  absl::Span<TensorEntry* const> entries, int contributors,
                  const Members& members) {
  TensorEntry& first = *entries[0];
  switch (first.request.kind) {
    case CollectiveKind::kAllreduce:
      return executor.Allreduce(entries);
    case CollectiveKind::kAdasum:
      return executor.Adasum(first);
    case CollectiveKind::kAllgather:
      if (first.on_contributors) first.on_contributors(contributors);
      return executor.Allgather(first, bucket.first_dims);
    case CollectiveKind::kBroadcast:
      return executor.Broadcast(first, members.RankOf(first.request.root_rank));
    case CollectiveKind::kReduceScatter:
      return executor.ReduceScatter(first);
    case CollectiveKind::kAlltoall:
      return executor.Alltoall(first, bucket.splits);
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      break;
  }
  return absl::InternalError(
      absl::StrCat(Name(first.request.kind), " moves no tensors"));
}

}  // namespace

absl::Status RunBucket(Lanes::Open& lane, const Verdict::Bucket& bucket,
                       absl::Span<TensorEntry* const> entries, int contributors,
                       const Members& members) {
  void* const stream = lane.lane.stream;
  for (const TensorEntry* entry : entries) {
    if (entry->on_start) TFRING_RETURN_IF_ERROR(entry->on_start(stream));
  }
  TFRING_RETURN_IF_ERROR(
      Move(lane.executor, bucket, entries, contributors, members));
  for (const TensorEntry* entry : entries) {
    if (entry->on_finish) TFRING_RETURN_IF_ERROR(entry->on_finish(stream));
  }
  // The ring's messages have told that all ranks are well; others' have not.
  return lane.lane.collectives == nullptr ? absl::OkStatus()
                                          : lane.lane.collectives->Finish();
}

}  // namespace tfring
