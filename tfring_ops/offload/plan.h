// What is done with the feature maps of one traced step, and what that cost.
//
// A Plan belongs to a traced step, an Execution to one run of it.  The handles
// of a run's stashed tensors share its Execution, so that it ends with the last
// of them, also where the run has failed or was cancelled.
//
// Note [The first steps are measured]
//
// Under a budget the first step of a trace, in which everything is moved, warms
// up; the second is measured, the third has a plan, or fails if even all that
// can be moved is not enough.  The graph is the same in all of them: a feature
// map that stays is kept in its handle.
//
// Thread-safe.
#ifndef TFRING_OPS_OFFLOAD_PLAN_H_
#define TFRING_OPS_OFFLOAD_PLAN_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/offload/planner.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {

// How much memory a device has allocated.
class Meter {
 public:
  virtual ~Meter() = default;
  // The most since the last call, or -1 if nobody counts.
  virtual int64_t TakePeakBytes() = 0;
};

struct PlanOptions {
  int64_t id = 0;
  int items = 0;  // how many feature maps the step may move
  // What is smaller stays.
  int64_t min_bytes = 0;
  // The most that may be allocated; 0 moves everything.
  int64_t budget_bytes = 0;
  std::string directory;  // of the disk tier; empty for the host's memory
  bool report = false;    // whether this process says what is moved
  std::string note;       // and what it adds
};

struct PlanStatistics {
  int64_t steps = 0;  // that have ended
  // Of the last step that has ended.
  int64_t moved = 0;
  int64_t moved_bytes = 0;
  int64_t kept = 0;  // for the budget
  int64_t kept_bytes = 0;
  int64_t small = 0;
  int64_t out_ns = 0;  // of copying, of all threads
  int64_t back_ns = 0;
  int64_t step_ns = 0;     // from its begin to that of the next
  int64_t peak_bytes = 0;  // that were allocated; -1 if nobody counts
  // Of the tiers, which plans share.
  Tier::Use tier;
};

class Execution;

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  // The plan of that id, made on the first call.  It lives for ever.
  // InvalidArgument if the tier cannot be.
  static absl::StatusOr<std::shared_ptr<Plan>> FindOrMake(
      const PlanOptions& options);
  // Null if there is none.
  static std::shared_ptr<Plan> Find(int64_t id);

  Plan(const PlanOptions& options, Tier* tier)
      : options_(options), tier_(tier) {}

  // A run begins.  `meter` may be null without a budget.
  // ResourceExhausted if the budget cannot be met; the message says what can.
  absl::StatusOr<std::shared_ptr<Execution>> Begin(
      std::shared_ptr<Meter> meter);

  PlanStatistics statistics() const;
  // Where tensors in the host's memory go.
  Tier* tier() const { return tier_; }
  // Where those of a GPU go: pinned memory.  Unimplemented for a disk.
  absl::StatusOr<Tier*> TierOfGpu(int gpu);

 private:
  friend class Execution;

  void End(Execution& execution);
  // REQUIRES, of all: mutex_ is held.
  absl::Status Decide(int64_t peak_bytes);
  void Report() const;

  const PlanOptions options_;
  Tier* const tier_;
  mutable std::mutex mutex_;     // of all that follows
  Tier* pinned_tier_ = nullptr;  // if it is in use
  int64_t begun_ = 0;
  int64_t begun_ns_ = 0;
  bool decided_ = false;
  MeasuredStep measured_;
  int64_t most_back_ = 0;        // feature maps, in any run that was measured
  int64_t allowance_bytes_ = 0;  // the budget, less a margin
  std::vector<bool> keep_;
  PlanStatistics statistics_;
};

class Execution {
 public:
  Execution(std::shared_ptr<Plan> plan, std::shared_ptr<Meter> meter,
            std::vector<bool> keep, bool measures);
  ~Execution();

  Plan& plan() { return *plan_; }

  // Whether a feature map of that size is moved.
  bool Moves(int item, int64_t bytes);
  void CopiedOut(int64_t busy_ns);
  // The events that are measured: what has been copied out is released, and
  // memory for it is about to be allocated again.
  bool measures() const { return measures_; }
  void Released(int item);
  void Allocates(int item);
  void CopiedBack(int64_t busy_ns);

 private:
  friend class Plan;

  // REQUIRES: mutex_ is held.
  int AddEvent();

  const std::shared_ptr<Plan> plan_;
  const std::shared_ptr<Meter> meter_;
  const std::vector<bool> keep_;
  const bool measures_;
  std::mutex mutex_;  // of all that follows
  PlanStatistics statistics_;
  MeasuredStep measured_;
};

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_PLAN_H_
