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
  const auto before =
      std::find_if(last_.rbegin(), last_.rend(),
                   [&](const auto& one) { return one.name == request.name; });
  const int64_t distance = before - last_.rbegin() + 1;
  if (before == last_.rend() || !SameRequest(*before, request)) {
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

// To leave a schedule costs a way to every rank, and back to the coordinator. A
// job that leaves soon, as one that evaluates every few steps, has to show
// twice as many periods for the next one.
void PeriodFinder::ScheduleHasEnded(int64_t items) {
  wanted_periods_ = items >= kPeriodsThatPay * period_
                        ? 2
                        : std::min(2 * wanted_periods_, kMaxWantedPeriods);
  Reset();
}

CachedSchedule::CachedSchedule(std::vector<CollectiveRequest> items, int size,
                               int rank)
    : items_(std::move(items)), rank_(rank), progress_(size) {}

bool CachedSchedule::IsNext(const CollectiveRequest& request) const {
  return SameRequest(items_[progress().count % items_.size()], request);
}

void CachedSchedule::Submit(CollectiveRequest request) {
  pending_.push_back(std::move(request));
  ++progress_[rank_].count;
}

void CachedSchedule::Leave() { progress_[rank_].leaves = true; }

absl::Status CachedSchedule::Receive(int peer, const ProgressUpdate& update) {
  ProgressUpdate& before = progress_[peer];
  if (before.leaves || update.count < before.count) {
    return absl::InternalError("a rank has taken back what it announced");
  }
  before = update;
  return absl::OkStatus();
}

bool CachedSchedule::SomeoneHasLeft() const {
  return std::any_of(progress_.begin(), progress_.end(),
                     [](const ProgressUpdate& one) { return one.leaves; });
}

std::vector<int32_t> CachedSchedule::Remaining() const {
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < progress_.size(); ++rank) {
    if (!progress_[rank].leaves) ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

// All ranks come to the same count in the end, though not at the same time:
// progress is never taken back, and the last update of a rank that leaves is
// final.
int64_t CachedSchedule::Agreed() const {
  return std::min_element(progress_.begin(), progress_.end(),
                          [](const ProgressUpdate& a, const ProgressUpdate& b) {
                            return a.count < b.count;
                          })
      ->count;
}

std::optional<CollectiveRequest> CachedSchedule::TakeNext() {
  if (taken_ == Agreed()) return std::nullopt;
  ++taken_;
  CollectiveRequest request = std::move(pending_.front());
  pending_.pop_front();
  return request;
}

// Not before all have left: a rank that has not may still add to what all have
// agreed on, which this rank must run as well.
bool CachedSchedule::over() const {
  return Remaining().empty() && taken_ == Agreed();
}

}  // namespace tfring
