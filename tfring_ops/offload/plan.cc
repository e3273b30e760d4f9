#include "tfring_ops/offload/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tfring_ops/base/log.h"

namespace tfring {
namespace {

// The step that is logged: TensorFlow has warmed up, and a budget has a plan.
constexpr int64_t kReportedStep = 3;

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", bytes / 1048576.0);
}

struct Plans {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<Plan>> by_id;
};

Plans& AllPlans() {
  static Plans& plans = *new Plans();
  return plans;
}

}  // namespace

std::shared_ptr<Plan> Plan::FindOrMake(const PlanOptions& options) {
  Plans& plans = AllPlans();
  std::lock_guard<std::mutex> lock(plans.mutex);
  std::shared_ptr<Plan>& plan = plans.by_id[options.id];
  // A loaded graph may have the id of another plan.
  if (plan == nullptr || plan->options_.items != options.items) {
    plan = std::make_shared<Plan>(options);
  }
  return plan;
}

std::shared_ptr<Plan> Plan::Find(int64_t id) {
  Plans& plans = AllPlans();
  std::lock_guard<std::mutex> lock(plans.mutex);
  const auto it = plans.by_id.find(id);
  return it == plans.by_id.end() ? nullptr : it->second;
}

std::shared_ptr<Execution> Plan::Begin(Meter meter) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::make_shared<Execution>(shared_from_this(), std::move(meter),
                                     keep_);
}

Tier* Plan::TierOfGpu(int gpu) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (pinned_tier_ == nullptr) pinned_tier_ = Tier::Pinned(gpu);
  return pinned_tier_;
}

void Plan::End(const Execution& execution) {
  std::lock_guard<std::mutex> lock(mutex_);
  PlanStatistics ended = execution.statistics_;
  ended.steps = statistics_.steps + 1;
  ended.peak_bytes = execution.meter_();
  statistics_ = ended;
  for (size_t i = 0; i < seen_.size(); ++i) {
    // Some may be missing: a run may fail, and TensorFlow's optimizations may
    // find that a feature map is not needed back.
    if (execution.seen_[i].back >= 0) seen_[i] = execution.seen_[i];
  }
  keep_ = ChooseToKeep(seen_, options_.budget_bytes);
  if (ended.steps == kReportedStep && options_.report) Report();
}

PlanStatistics Plan::statistics() const {
  std::lock_guard<std::mutex> lock(mutex_);
  PlanStatistics statistics = statistics_;
  statistics.tier = Tier::Pageable()->use();
  if (pinned_tier_ != nullptr) {
    const Tier::Use pinned = pinned_tier_->use();
    statistics.tier.in_use_bytes += pinned.in_use_bytes;
    statistics.tier.peak_bytes += pinned.peak_bytes;
    statistics.tier.reserved_bytes += pinned.reserved_bytes;
  }
  return statistics;
}

void Plan::Report() const {
  const PlanStatistics& s = statistics_;
  std::string kept;
  if (options_.budget_bytes > 0) {
    kept = absl::StrCat(" ", s.kept, " (", Mebibytes(s.kept_bytes),
                        ") stay, of a budget of ",
                        Mebibytes(options_.budget_bytes), ".");
  }
  std::string peak;
  if (s.peak_bytes >= 0) {
    peak = absl::StrCat(" The device's allocator has counted up to ",
                        Mebibytes(s.peak_bytes), " at once.");
  }
  LogInfo(0, absl::StrCat("offload: a step moves ", s.moved,
                          " feature maps to the host's memory, which frees ",
                          Mebibytes(s.moved_bytes), ".", kept, " ", s.small,
                          " are below min_bytes.", peak, options_.note));
}

Execution::Execution(std::shared_ptr<Plan> plan, Meter meter,
                     std::vector<bool> keep)
    : plan_(std::move(plan)),
      meter_(std::move(meter)),
      keep_(std::move(keep)),
      seen_(plan_->options_.items) {}

Execution::~Execution() { plan_->End(*this); }

bool Execution::Moves(int item, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes < std::max<int64_t>(1, plan_->options_.min_bytes)) {
    ++statistics_.small;
    return false;
  }
  seen_[item].bytes = bytes;
  if (!keep_.empty() && keep_[item] &&
      // The batch may be larger than the plan's.
      statistics_.kept_bytes + bytes <= plan_->options_.budget_bytes) {
    ++statistics_.kept;
    statistics_.kept_bytes += bytes;
    return false;
  }
  ++statistics_.moved;
  statistics_.moved_bytes += bytes;
  return true;
}

void Execution::NeedsBack(int item) {
  std::lock_guard<std::mutex> lock(mutex_);
  seen_[item].back = back_++;
}

}  // namespace tfring
