#include "tfring_ops/engine/negotiation/cached_schedule.h"

#include <algorithm>
#include <utility>

#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

// A cached schedule that has repeated this often was worth the messages of
// leaving it.
constexpr int64_t kPeriodsThatPay = 4;
constexpr int64_t kMaxWantedPeriods = 64;

}  // namespace

bool SameRequest(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.name == b.name && DescribeDifference(a, 0, b, 0).empty();
}

// The distance to the last request of the same name is the period, if all
// requests since then have the same distance to their predecessors.
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

// Leaving a schedule costs a message to every rank, and one back to the
// coordinator.  A job that leaves soon, for example because it evaluates every
// few steps, has to show twice as many periods for the next one.
void PeriodFinder::ScheduleHasEnded(int64_t items) {
  wanted_periods_ = items >= kPeriodsThatPay * period_
                        ? 2
                        : std::min(2 * wanted_periods_, kMaxWantedPeriods);
  Reset();
}

CachedSchedule::CachedSchedule(std::vector<CollectiveRequest> items, int rank,
                               int size, ProgressNeighbors neighbors)
    : items_(std::move(items)),
      rank_(rank),
      size_(size),
      neighbors_(std::move(neighbors)),
      heard_(size),
      own_sizes_(items_.size()),
      sizes_(items_.size()) {}

bool CachedSchedule::IsNext(const CollectiveRequest& request) const {
  return SameRequest(items_[submitted() % items_.size()], request);
}

void CachedSchedule::Submit(CollectiveRequest request) {
  std::vector<int64_t> sizes = CollectiveOf(request.kind).Sizes(request);
  std::vector<int64_t>& before = own_sizes_[own_.count % items_.size()];
  if (sizes != before) {
    before = sizes;
    unreported_.push_back({own_.count, rank_, std::move(sizes)});
    if (is_root()) Know(unreported_.back());
  }
  pending_.push_back(std::move(request));
  ++own_.count;
}

void CachedSchedule::Know(const RequestSizes& sizes) {
  changes_[sizes.item].push_back(sizes);
  if (!neighbors_.children.empty()) untold_.push_back(sizes);
}

void CachedSchedule::AddBorder(int64_t count) {
  if (count <= taken_ || !borders_.insert(count).second) return;
  if (!neighbors_.children.empty()) untold_borders_.push_back(count);
}

Progress CachedSchedule::Below() const {
  Progress below = own_;
  for (const int child : neighbors_.children) below.Add(heard_[child]);
  return below;
}

Progress CachedSchedule::Total() const {
  return is_root() ? Below() : heard_[neighbors_.parent];
}

// All ranks reach the same count in the end, though not at the same time:
// progress is never taken back, and the last update of a neighbor is final.
Progress CachedSchedule::Agreed() const {
  if (!is_root()) return heard_[neighbors_.parent];
  if (!neighbors_.children.empty()) return told_;
  Progress agreed = reported_;
  for (const int peer : neighbors_.peers) agreed.Add(heard_[peer]);
  return agreed;
}

bool CachedSchedule::SomeHaveLeft() const {
  return Below().some_left || Agreed().some_left;
}

std::optional<ProgressUpdate> CachedSchedule::TakeReport() {
  const Progress below = Below();
  if (below == reported_) return std::nullopt;
  reported_ = below;
  if (neighbors_.children.empty() && is_root()) AddBorder(below.count);
  return ProgressUpdate{below, {}, std::exchange(unreported_, {})};
}

std::optional<ProgressUpdate> CachedSchedule::TakeTotal() {
  if (neighbors_.children.empty()) return std::nullopt;
  const Progress total = Total();
  if (total == told_) return std::nullopt;
  if (is_root()) AddBorder(total.count);
  told_ = total;
  return ProgressUpdate{total, std::exchange(untold_borders_, {}),
                        std::exchange(untold_, {})};
}

absl::Status CachedSchedule::Receive(int neighbor,
                                     const ProgressUpdate& update) {
  Progress& before = heard_[neighbor];
  if (before.all_left || update.progress.count < before.count) {
    return absl::InternalError("a rank has taken back what it announced");
  }
  for (const RequestSizes& sizes : update.sizes) {
    if (sizes.rank < 0 || sizes.rank >= size_ || sizes.item < taken_) {
      return absl::InternalError("a rank has announced sizes of no item");
    }
  }
  before = update.progress;
  // The coordinator sends the sizes of the ranks below down again.
  if (is_root() || neighbor == neighbors_.parent) {
    for (const RequestSizes& sizes : update.sizes) Know(sizes);
  } else {
    unreported_.insert(unreported_.end(), update.sizes.begin(),
                       update.sizes.end());
  }
  if (neighbor == neighbors_.parent) {
    for (const int64_t border : update.borders) AddBorder(border);
  } else if (neighbors_.children.empty()) {
    AddBorder(before.count);
  }
  return absl::OkStatus();
}

std::vector<CachedSchedule::Item> CachedSchedule::TakeReady() {
  std::vector<Item> ready;
  if (borders_.empty() || *borders_.begin() > Agreed().count) return ready;
  const int64_t border = *borders_.begin();
  ready.reserve(border - taken_);
  for (; taken_ < border; ++taken_) {
    SizesByRank& sizes = sizes_[taken_ % items_.size()];
    if (const auto changes = changes_.find(taken_); changes != changes_.end()) {
      sizes.resize(size_);
      for (RequestSizes& change : changes->second) {
        sizes[change.rank] = std::move(change.sizes);
      }
      changes_.erase(changes);
    }
    ready.push_back({std::move(pending_.front()), sizes});
    pending_.pop_front();
  }
  borders_.erase(borders_.begin());
  return ready;
}

// A schedule is not over before all ranks have left: until then the count of
// common items may grow, and this rank must run them as well.
bool CachedSchedule::over() const {
  const Progress agreed = Agreed();
  return agreed.all_left && taken_ == agreed.count;
}

}  // namespace tfring
