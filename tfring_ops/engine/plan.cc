#include "tfring_ops/engine/plan.h"

#include <algorithm>
#include <utility>

#include "tfring_ops/engine/coordinator.h"

namespace tfring {
namespace {

// A plan that has run through this often was worth the ways of leaving it.
constexpr int64_t kPeriodsThatPay = 4;
constexpr int64_t kMaxWantedPeriods = 64;

}  // namespace

bool CanBePlanned(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAdasum:
      return true;
    case CollectiveKind::kAllgather:  // all ranks' first dimensions
    case CollectiveKind::kAlltoall:   // all ranks' splits
    case CollectiveKind::kJoin:       // who was the last
      return false;
  }
  return false;
}

bool Agree(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.name == b.name && DescribeDifference(a, 0, b, 0).empty();
}

void PeriodFinder::Add(CollectiveRequest request) {
  const auto before =
      std::find_if(last_.rbegin(), last_.rend(),
                   [&](const auto& one) { return one.name == request.name; });
  const int64_t distance = before - last_.rbegin() + 1;
  if (before == last_.rend() || !Agree(*before, request)) {
    period_ = repeats_ = 0;
  } else if (distance == period_) {
    ++repeats_;
  } else {
    period_ = distance;
    repeats_ = 1;
  }
  last_.push_back(std::move(request));
  if (last_.size() > kMaxPeriod) last_.pop_front();
}

void PeriodFinder::Reset() {
  last_.clear();
  period_ = repeats_ = 0;
}

std::vector<CollectiveRequest> PeriodFinder::Period() const {
  if (period_ == 0 || repeats_ < (wanted_periods_ - 1) * period_) return {};
  return {last_.end() - period_, last_.end()};
}

void PeriodFinder::PlanHasEnded(int64_t items) {
  wanted_periods_ = items >= kPeriodsThatPay * period_
                        ? 2
                        : std::min(2 * wanted_periods_, kMaxWantedPeriods);
  Reset();
}

StepPlan::StepPlan(std::vector<CollectiveRequest> items, int size, int rank)
    : items_(std::move(items)), rank_(rank), announced_(size) {}

bool StepPlan::IsNext(const CollectiveRequest& request) const {
  return Agree(items_[announced().count % items_.size()], request);
}

void StepPlan::Submit(CollectiveRequest request) {
  pending_.push_back(std::move(request));
  ++announced_[rank_].count;
}

void StepPlan::Leave() { announced_[rank_].leaves = true; }

absl::Status StepPlan::Hear(int peer, const Announcement& announcement) {
  Announcement& before = announced_[peer];
  if (before.leaves || announcement.count < before.count) {
    return absl::InternalError("a rank has taken back what it announced");
  }
  before = announcement;
  return absl::OkStatus();
}

bool StepPlan::SomeoneHasLeft() const {
  return std::any_of(announced_.begin(), announced_.end(),
                     [](const Announcement& one) { return one.leaves; });
}

std::vector<int32_t> StepPlan::Remaining() const {
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < announced_.size(); ++rank) {
    if (!announced_[rank].leaves) ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

int64_t StepPlan::Agreed() const {
  return std::min_element(announced_.begin(), announced_.end(),
                          [](const Announcement& a, const Announcement& b) {
                            return a.count < b.count;
                          })
      ->count;
}

std::optional<CollectiveRequest> StepPlan::TakeNext() {
  if (taken_ == Agreed()) return std::nullopt;
  ++taken_;
  CollectiveRequest request = std::move(pending_.front());
  pending_.pop_front();
  return request;
}

bool StepPlan::over() const {
  return Remaining().empty() && taken_ == Agreed();
}

}  // namespace tfring
