// A bucket, from the ranks' agreement until its entries are done.
#ifndef TFRING_OPS_ENGINE_EXECUTION_BUCKET_TASK_H_
#define TFRING_OPS_ENGINE_EXECUTION_BUCKET_TASK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/engine/execution/lanes.h"
#include "tfring_ops/engine/execution/neutral_contribution.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/submissions.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {

// A task must be owned by a std::shared_ptr.  It is not thread-safe, except for
// finished().
class BucketTask : public std::enable_shared_from_this<BucketTask> {
 public:
  // REQUIRES: the references outlive this.
  BucketTask(Response bucket, const Members& members, Submissions& submissions,
             Clock::time_point now);

  const Response& bucket() const { return bucket_; }
  // When the ranks had agreed on the bucket.
  Clock::time_point since() const { return since_; }

  // Adds this rank's entries and, for those that it lacks, neutral
  // contributions.  The order is that of the bucket's names.
  void Add(TensorEntry entry);
  void AddNeutralContribution(const CollectiveRequest& request);

  const CollectiveRequest& first() const { return entries_[0]->request; }
  // Describes the bucket in messages, also after it has finished.
  // REQUIRES: it has an entry.
  const std::string& label() const { return label_; }
  // The size of all tensors.
  int64_t bytes() const { return bytes_; }
  bool has_neutral_contributions() const {
    return !neutral_contributions_.empty();
  }

  // Runs the bucket on `lane`, and finishes it.  A lane with stream collectives
  // may only have launched it when this returns, and finishes it when it is
  // polled.  An error aborts the lane, and leaves the entries in flight,
  // because the lane may still use their memory.
  // REQUIRES:  `lane` outlives this.
  absl::Status Run(ExecutionLane& lane);

  // Keeps the memory of an unfinished bucket alive, which messages in flight
  // may still use.
  void KeepMemory();

  // Calls each entry's `done`.  Only the first call has an effect.
  // REQUIRES: if `status` is OK, the lane has done all work, or the entries'
  // `on_finish` lets others wait for it.
  void Finish(const absl::Status& status);
  bool finished() const { return finished_; }

 private:
  absl::Status RunOn(ExecutionLane& lane);

  // Sets label_ by the first request, and adds to bytes_.
  void Count(const CollectiveRequest& request);

  const Response bucket_;
  const Members& members_;
  Submissions& submissions_;
  const Clock::time_point since_;
  std::deque<TensorEntry> own_;
  std::deque<NeutralContribution> neutral_contributions_;
  std::vector<TensorEntry*> entries_;  // All entries, of both kinds.
  std::string label_;
  int64_t bytes_ = 0;
  std::optional<TimelineSpan> span_;
  std::atomic<bool> finished_{false};
};

// Removes an entry from those in flight, and calls its `done`.
void Finish(const TensorEntry& entry, const absl::Status& status,
            Submissions& submissions);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_BUCKET_TASK_H_
