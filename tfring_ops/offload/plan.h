// The treatment of the feature maps of one traced step, and its costs.
//
// A Plan belongs to a traced step, an Execution to one run of it.  The handles
// of a run's stashed tensors share its Execution, so that it ends with the last
// of them, also where the run has failed or was cancelled.
//
// Note [A budget is of feature maps]
//
// Under a budget the first step of a trace moves everything; each step shows
// the next how large the feature maps are, and in which order they are needed
// back.  The graph is the same in all of them: a feature map that stays is kept
// in its handle.  The plan counts them itself.  An allocator's count does not
// measure a step: it covers the whole process, it may leave out small tensors,
// and nothing tells a plan where the step's update ends.
//
// Thread-safe.
#ifndef TFRING_OPS_OFFLOAD_PLAN_H_
#define TFRING_OPS_OFFLOAD_PLAN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tfring_ops/offload/planner.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {

// Returns the most bytes that a device's allocator has allocated at once, by
// its own count, or -1 if it does not count.  The number is only shown.
using Meter = std::function<int64_t()>;

struct PlanOptions {
  int64_t id = 0;
  int items = 0;  // the number of feature maps that the step may move
  // Feature maps of fewer bytes stay.
  int64_t min_bytes = 0;
  // The most bytes that may stay, without small feature maps; 0 moves
  // everything.
  int64_t budget_bytes = 0;
  bool report = false;  // whether this process logs what is moved
  std::string note;     // what the log adds
};

struct PlanStatistics {
  int64_t steps = 0;  // steps that have ended
  // The following figures are those of the last step that has ended.
  int64_t moved = 0;
  int64_t moved_bytes = 0;
  int64_t kept = 0;  // as far as the budget allows
  int64_t kept_bytes = 0;
  int64_t small = 0;
  int64_t peak_bytes = -1;  // read from the meter when the step ended
  // The use of the tiers, which all plans share.
  Tier::Use tier;
};

class Execution;

class Plan : public std::enable_shared_from_this<Plan> {
 public:
  // Returns the plan of this id and number of items.  The first call makes it.
  static std::shared_ptr<Plan> FindOrMake(const PlanOptions& options);
  // Returns null if there is no such plan.
  static std::shared_ptr<Plan> Find(int64_t id);

  explicit Plan(const PlanOptions& options)
      : options_(options), seen_(options.items) {}

  // Begins a run of the step.
  std::shared_ptr<Execution> Begin(Meter meter);

  PlanStatistics statistics() const;
  // The tier for a GPU's tensors.
  Tier* TierOfGpu(int gpu);

 private:
  friend class Execution;

  void End(const Execution& execution);
  // REQUIRES: mutex_ is held.
  void Report() const;

  const PlanOptions options_;
  mutable std::mutex mutex_;      // of all that follows
  Tier* pinned_tier_ = nullptr;   // null if it is not in use
  std::vector<FeatureMap> seen_;  // each as the last run that reached it saw it
  std::vector<bool> keep_;        // empty before the first run has ended
  PlanStatistics statistics_;
};

class Execution {
 public:
  Execution(std::shared_ptr<Plan> plan, Meter meter, std::vector<bool> keep);
  ~Execution();

  Plan& plan() { return *plan_; }

  // Returns true if a feature map of that size is moved.
  bool Moves(int item, int64_t bytes);
  // Notes that backpropagation needs a feature map, whether it was moved or
  // not.
  void NeedsBack(int item);

 private:
  friend class Plan;

  const std::shared_ptr<Plan> plan_;
  const Meter meter_;
  const std::vector<bool> keep_;
  std::mutex mutex_;  // of all that follows
  PlanStatistics statistics_;
  std::vector<FeatureMap> seen_;
  int back_ = 0;  // the number of feature maps that were needed back
};

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_PLAN_H_
