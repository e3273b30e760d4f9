#include "tfring_ops/engine/execution/bucket_task.h"

#include <memory>
#include <utility>

#include "tfring_ops/algorithms/stream_collectives.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/error_messages.h"
#include "tfring_ops/transport/counting.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

BucketTask::BucketTask(Response bucket, const Members& members,
                       Submissions& submissions, Clock::time_point now)
    : bucket_(std::move(bucket)),
      members_(members),
      submissions_(submissions),
      since_(now) {}

void BucketTask::Count(const CollectiveRequest& request) {
  if (label_.empty()) label_ = LabelOf(members_, request);
  bytes_ += SizeInBytes(request);
}

void BucketTask::Add(TensorEntry entry) {
  Count(entry.request);
  entries_.push_back(&own_.emplace_back(std::move(entry)));
}

void BucketTask::AddNeutralContribution(const CollectiveRequest& request) {
  Count(request);
  entries_.push_back(&neutral_contributions_.emplace_back(request).entry());
}

absl::Status BucketTask::Run(ExecutionLane& lane) {
  if (!lane.failure.ok()) return lane.failure;
  absl::Status status = RunOn(lane);
  if (IsTimeout(status)) {
    // No rank is silent: the engines would have noticed.
    status = absl::DeadlineExceededError(absl::StrCat(
        label_, " does not move, although every rank is alive: ",
        status.message(), ". A link between the two may be broken."));
  }
  // Abort at once: peers may be in the middle of the collective, and would take
  // this rank's next message for the rest of it.
  if (!status.ok()) {
    lane.Abort(status);
    return status;
  }
  if (StreamCollectives* const launched = lane.lane.collectives.get()) {
    return launched->Then(
        [task = shared_from_this()] { task->Finish(absl::OkStatus()); });
  }
  Finish(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status BucketTask::RunOn(ExecutionLane& lane) {
  const int contributors =
      bucket_.requests.empty() ? members_.size() : bucket_.contributors;
  for (NeutralContribution& contribution : neutral_contributions_) {
    TFRING_RETURN_IF_ERROR(contribution.Allocate(*lane.lane.kernels));
  }
  const bool is_launched = lane.lane.collectives != nullptr;
  span_.emplace(Timeline::Phase::kBucket, first(), bytes_,
                is_launched ? &lane.track : nullptr);
  // Restart the names before `done`, after which the rank submits new requests.
  if (first().kind == CollectiveKind::kJoin) submissions_.RestartNames();
  // The framework may ask the driver for memory of the outputs.
  if (entries_.front()->allocate_output) {
    TFRING_RETURN_IF_ERROR(lane.lane.kernels->AwaitWork());
  }
  void* const stream = lane.lane.stream;
  for (const TensorEntry* entry : entries_) {
    if (entry->on_start) TFRING_RETURN_IF_ERROR(entry->on_start(stream));
  }
  std::shared_ptr<void> turn;
  if (lane.lane.await_turn) {
    TFRING_ASSIGN_OR_RETURN(turn, lane.lane.await_turn());
  }
  const CountedAs counted(*lane.lane.transport, MessagesOf(first().kind));
  const int64_t counted_before = lane.lane.transport->counted_bytes();
  TFRING_RETURN_IF_ERROR(
      CollectiveOf(first().kind)
          .Run(lane.context, {entries_, bucket_, contributors, members_}));
  span_->AddSent(lane.lane.transport->counted_bytes() - counted_before);
  turn.reset();
  // The ring's messages have told that all ranks are well.  Only the device
  // knows of errors on remote ranks, so the entries are done when the device
  // is.
  if (is_launched) return absl::OkStatus();
  for (const TensorEntry* entry : entries_) {
    if (entry->on_finish) TFRING_RETURN_IF_ERROR(entry->on_finish(stream));
  }
  return absl::OkStatus();
}

void BucketTask::KeepMemory() {
  if (finished()) return;
  for (const TensorEntry& entry : own_) {
    if (entry.keep_memory) entry.keep_memory();
  }
  KeepForever(std::move(neutral_contributions_));
}

void BucketTask::Finish(const absl::Status& status) {
  if (finished_.exchange(true)) return;
  span_.reset();
  for (const TensorEntry& entry : own_) {
    tfring::Finish(entry, status, submissions_);
  }
  // Release the framework's objects here, and not with the last owner.
  entries_.clear();
  own_.clear();
  neutral_contributions_.clear();
}

void Finish(const TensorEntry& entry, const absl::Status& status,
            Submissions& submissions) {
  Timeline::Global().RecordRequest(Timeline::Phase::kRequest, entry.request,
                                   entry.submitted_ns,
                                   Timeline::Global().Now());
  // `done` may submit another request of this name, so the name goes first.
  submissions.Remove(entry.request.name);
  entry.done(status);
}

}  // namespace tfring
