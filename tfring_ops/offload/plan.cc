#include "tfring_ops/offload/plan.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// See Note [The first steps are measured].
constexpr int64_t kMeasuredStep = 2;
constexpr int64_t kReportedStep = 3;

// The executor runs operations in another order in each step, and the peak
// differs by so many feature maps.
constexpr int64_t kMarginItems = 3;

int64_t Now() {
  return std::chrono::nanoseconds(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", bytes / 1048576.0);
}

std::string Milliseconds(int64_t ns) {
  return absl::StrFormat("%.1f ms", ns / 1e6);
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

absl::StatusOr<std::shared_ptr<Plan>> Plan::FindOrMake(
    const PlanOptions& options) {
  TFRING_ASSIGN_OR_RETURN(Tier* const tier, Tier::Find(options.directory));
  Plans& plans = AllPlans();
  std::lock_guard<std::mutex> lock(plans.mutex);
  std::shared_ptr<Plan>& plan = plans.by_id[options.id];
  if (plan == nullptr) plan = std::make_shared<Plan>(options, tier);
  return plan;
}

std::shared_ptr<Plan> Plan::Find(int64_t id) {
  Plans& plans = AllPlans();
  std::lock_guard<std::mutex> lock(plans.mutex);
  const auto it = plans.by_id.find(id);
  return it == plans.by_id.end() ? nullptr : it->second;
}

absl::StatusOr<std::shared_ptr<Execution>> Plan::Begin(
    std::shared_ptr<Meter> meter) {
  const int64_t peak_bytes = meter == nullptr ? -1 : meter->TakePeakBytes();
  if (options_.budget_bytes > 0 && peak_bytes < 0) {
    return absl::FailedPreconditionError(
        "offload: policy=\"auto\" needs to know how much memory is allocated, "
        "and this device's allocator does not count. Use policy=\"all\" or "
        "\"conv\".");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t now = Now();
  if (begun_ > 0) {
    statistics_.step_ns = now - begun_ns_;
    // While a step is measured, each of its events takes the peak before it.
    statistics_.peak_bytes =
        decided_ ? peak_bytes : std::max(peak_bytes, measured_.peak());
    TFRING_RETURN_IF_ERROR(Decide(peak_bytes));
  }
  ++begun_;
  begun_ns_ = now;
  if (begun_ == kReportedStep + 1 && options_.report) Report();
  const bool measures = options_.budget_bytes > 0 && !decided_;
  return std::make_shared<Execution>(shared_from_this(), std::move(meter),
                                     keep_, measures);
}

absl::StatusOr<Tier*> Plan::TierOfGpu(int gpu) {
  if (!options_.directory.empty()) {
    return absl::UnimplementedError(
        "offload: tier=\"disk\" is for feature maps on CPUs, and this one is "
        "on a GPU. Use tier=\"host\".");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (pinned_tier_ == nullptr) pinned_tier_ = Tier::FindPinned(gpu);
  return pinned_tier_;
}

absl::Status Plan::Decide(int64_t peak_bytes) {
  if (options_.budget_bytes == 0 || begun_ < kMeasuredStep) {
    return absl::OkStatus();
  }
  if (!decided_) {
    if (measured_.peaks.empty()) return absl::OkStatus();  // The step failed.
    // What the measured step allocated after its last event.
    measured_.peaks.push_back(peak_bytes);
    int64_t largest = 0;
    for (const MeasuredStep::Item& item : measured_.items) {
      largest = std::max(largest, item.bytes);
    }
    const int64_t margin_bytes = kMarginItems * largest;
    const int64_t least_bytes = measured_.peak() + margin_bytes;
    if (least_bytes > options_.budget_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "offload: budget_bytes=", options_.budget_bytes,
          " cannot be met. With every feature map moved that can be, this step "
          "may allocate ",
          least_bytes,
          " bytes at once, which is the least budget that can be met. Or make "
          "the batch smaller, or lower ahead= or min_bytes=."));
    }
    decided_ = true;
    allowance_bytes_ = options_.budget_bytes - margin_bytes;
    keep_ = ChooseToKeep(measured_, allowance_bytes_);
  } else if (peak_bytes > options_.budget_bytes) {
    // The margin was too small.
    allowance_bytes_ -= peak_bytes - options_.budget_bytes;
    keep_ = ChooseToKeep(measured_, allowance_bytes_);
  }
  return absl::OkStatus();
}

void Plan::End(Execution& execution) {
  std::lock_guard<std::mutex> lock(mutex_);
  PlanStatistics ended = execution.statistics_;
  ended.steps = statistics_.steps + 1;
  ended.step_ns = statistics_.step_ns;
  ended.peak_bytes = statistics_.peak_bytes;
  statistics_ = ended;
  if (execution.measures_ && !decided_) {
    // TensorFlow's optimizations may find that some are not needed back.  A run
    // that has fewer back than another has failed.
    const int64_t back = std::count_if(
        execution.measured_.items.begin(), execution.measured_.items.end(),
        [](const MeasuredStep::Item& item) { return item.back >= 0; });
    const bool complete = back >= most_back_;
    most_back_ = std::max(most_back_, back);
    measured_ = complete ? std::move(execution.measured_) : MeasuredStep();
  }
}

PlanStatistics Plan::statistics() const {
  std::lock_guard<std::mutex> lock(mutex_);
  PlanStatistics statistics = statistics_;
  statistics.tier = tier_->use();
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
    kept =
        absl::StrCat(" ", s.kept, " (", Mebibytes(s.kept_bytes),
                     ") stay, and the step allocates ", Mebibytes(s.peak_bytes),
                     " of a budget of ", Mebibytes(options_.budget_bytes), ".");
  }
  const std::string tier = options_.directory.empty()
                               ? "the host's memory"
                               : absl::StrCat("a file in ", options_.directory);
  LogInfo(0, absl::StrCat(
                 "offload: a step moves ", s.moved, " feature maps to ", tier,
                 ", which frees ", Mebibytes(s.moved_bytes), ".", kept, " ",
                 s.small, " are below min_bytes. Copies took ",
                 Milliseconds(s.out_ns), " out and ", Milliseconds(s.back_ns),
                 " back of the copiers' time, beside a step of ",
                 Milliseconds(s.step_ns), ".", options_.note));
}

Execution::Execution(std::shared_ptr<Plan> plan, std::shared_ptr<Meter> meter,
                     std::vector<bool> keep, bool measures)
    : plan_(std::move(plan)),
      meter_(std::move(meter)),
      keep_(std::move(keep)),
      measures_(measures) {
  if (measures_) measured_.items.resize(plan_->options_.items);
}

Execution::~Execution() { plan_->End(*this); }

bool Execution::Moves(int item, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (bytes < std::max<int64_t>(1, plan_->options_.min_bytes)) {
    ++statistics_.small;
    return false;
  }
  if (item < static_cast<int>(keep_.size()) && keep_[item] &&
      // A larger batch than was measured.
      bytes <= plan_->measured_.items[item].bytes) {
    ++statistics_.kept;
    statistics_.kept_bytes += bytes;
    return false;
  }
  ++statistics_.moved;
  statistics_.moved_bytes += bytes;
  if (measures_) measured_.items[item].bytes = bytes;
  return true;
}

int Execution::AddEvent() {
  measured_.peaks.push_back(meter_->TakePeakBytes());
  return static_cast<int>(measured_.peaks.size()) - 1;
}

void Execution::CopiedOut(int64_t busy_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  statistics_.out_ns += busy_ns;
}

void Execution::Released(int item) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (measures_) measured_.items[item].away = AddEvent();
}

void Execution::Allocates(int item) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (measures_) measured_.items[item].back = AddEvent();
}

void Execution::CopiedBack(int64_t busy_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  statistics_.back_ns += busy_ns;
}

}  // namespace tfring
