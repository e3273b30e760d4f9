#include "tfring_ops/engine/negotiation/cached_schedule.h"

#include <algorithm>
#include <utility>

#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

// A cached schedule that has run through this often was worth the ways of
// leaving it.
constexpr int64_t kPeriodsThatPay = 4;
constexpr int64_t kMaxWantedPeriods = 64;

}  // namespace

bool SameRequest(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.name == b.name && DescribeDifference(a, 0, b, 0).empty();
}

// The distance to the last request of the same name is the period, if all those
// since then have had the same distance to theirs.
void PeriodFinder::Add(CollectiveRequest request) {
  const auto [newest, is_new] = newest_.try_emplace(request.name, added_);
  const int64_t distance = added_ - newest->second;
  if (is_new || !SameRequest(last_[last_.size() - distance], request)) {
    period_ = repeats_ = 0;
  } else if (distance == period_) {
    ++repeats_;
  } else {
    period_ = distance;
    repeats_ = 1;
  }
  newest->second = added_++;
  last_.push_back(std::move(request));
  if (last_.size() <= kMaxPeriod) return;
  const auto oldest = newest_.find(last_.front().name);
  if (oldest->second < added_ - kMaxPeriod) newest_.erase(oldest);
  last_.pop_front();
}

void PeriodFinder::Reset() {
  last_.clear();
  newest_.clear();
  period_ = repeats_ = 0;
}

std::vector<CollectiveRequest> PeriodFinder::Period() const {
  if (period_ == 0 || repeats_ < (wanted_periods_ - 1) * period_) return {};
  return {last_.end() - period_, last_.end()};
}

// To leave a schedule costs a way to every rank, and back to the coordinator. A
// job that leaves soon, as one that evaluates every few steps, has to show
// twice as many periods for the next one.
void PeriodFinder::ScheduleHasEnded(int64_t items) {
  wanted_periods_ = items >= kPeriodsThatPay * period_
                        ? 2
                        : std::min(2 * wanted_periods_, kMaxWantedPeriods);
  Reset();
}

CachedSchedule::CachedSchedule(std::vector<CollectiveRequest> items,
                               ProgressNeighbors neighbors)
    : items_(std::move(items)), neighbors_(std::move(neighbors)) {
  for (const int neighbor : neighbors_.All()) {
    heard_.resize(std::max<size_t>(heard_.size(), neighbor + 1));
  }
}

bool CachedSchedule::IsNext(const CollectiveRequest& request) const {
  return SameRequest(items_[submitted() % items_.size()], request);
}

void CachedSchedule::Submit(CollectiveRequest request) {
  pending_.push_back(std::move(request));
  ++own_.count;
}

ProgressUpdate CachedSchedule::Report() const {
  ProgressUpdate report = own_;
  for (const int child : neighbors_.children) report.Add(heard_[child]);
  return report;
}

// All ranks come to the same count in the end, though not at the same time:
// progress is never taken back, and the last update of a neighbor is final.
ProgressUpdate CachedSchedule::Total() const {
  if (neighbors_.parent >= 0) return heard_[neighbors_.parent];
  ProgressUpdate total = Report();
  for (const int peer : neighbors_.peers) total.Add(heard_[peer]);
  return total;
}

absl::Status CachedSchedule::Receive(int neighbor,
                                     const ProgressUpdate& update) {
  ProgressUpdate& before = heard_[neighbor];
  if (before.all_left || update.count < before.count) {
    return absl::InternalError("a rank has taken back what it announced");
  }
  before = update;
  return absl::OkStatus();
}

std::optional<CollectiveRequest> CachedSchedule::TakeNext() {
  if (taken_ == Total().count) return std::nullopt;
  ++taken_;
  CollectiveRequest request = std::move(pending_.front());
  pending_.pop_front();
  return request;
}

// Not before all have left: a rank that has not may still add to what all have
// requested, which this rank must run as well.
bool CachedSchedule::over() const {
  const ProgressUpdate total = Total();
  return total.all_left && taken_ == total.count;
}

}  // namespace tfring
