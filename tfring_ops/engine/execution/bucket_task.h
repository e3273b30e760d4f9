// A bucket from the ranks' negotiation to the end of its entries.
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

// Not thread-safe, but for finished().
class BucketTask {
 public:
  // REQUIRES: the references outlive this.
  BucketTask(Response bucket, const Members& members, Submissions& submissions,
             Clock::time_point now);

  const Response& bucket() const { return bucket_; }
  // When it was made.
  Clock::time_point since() const { return since_; }

  // This rank's entries, and neutral contributions for missing ones, in the
  // order of the bucket's names.
  void Add(TensorEntry entry);
  void AddNeutralContribution(const CollectiveRequest& request);

  const CollectiveRequest& first() const { return entries_[0]->request; }
  // Its description for messages; also when it is finished.
  // REQUIRES: it has an entry.
  const std::string& label() const { return label_; }
  // The size of all tensors.
  int64_t bytes() const { return bytes_; }
  bool has_neutral_contributions() const {
    return !neutral_contributions_.empty();
  }

  // Returns before a lane with stream collectives has done what it is asked
  // for.  An error leaves the entries in flight: their memory may be, too.  It
  // aborts the lane, and nothing runs on it any more.
  // REQUIRES: the lane outlives this.
  absl::Status Run(ExecutionLane& lane);

  // Unless it is finished: messages in flight may still use the memory.
  void KeepMemory();

  // Calls each entry's `done`; the first call counts.
  // REQUIRES: with OK, what Run has asked the lane for is done, or the entries'
  // `on_finish` has seen to it that others can wait for it.
  void Finish(const absl::Status& status);
  bool finished() const { return finished_; }

 private:
  absl::Status RunOn(ExecutionLane& lane);

  // Names the tensors in messages.
  void Describe(const CollectiveRequest& request);

  const Response bucket_;
  const Members& members_;
  Submissions& submissions_;
  const Clock::time_point since_;
  std::deque<TensorEntry> own_;
  std::deque<NeutralContribution> neutral_contributions_;
  std::vector<TensorEntry*> entries_;  // all of them
  std::string label_;
  int64_t bytes_ = 0;
  std::optional<TimelineSpan> span_;
  std::atomic<bool> finished_{false};
};

// Runs `task` and finishes it, or, where it is launched, has it finished when
// the lane is polled.
// REQUIRES: the lane outlives the task.
absl::Status RunAndFinish(const std::shared_ptr<BucketTask>& task,
                          ExecutionLane& lane);

// Ends one entry, which is no longer in flight: calls its `done`.
void Finish(const TensorEntry& entry, const absl::Status& status,
            Submissions& submissions);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_BUCKET_TASK_H_
