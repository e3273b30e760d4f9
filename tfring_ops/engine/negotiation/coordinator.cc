#include "tfring_ops/engine/negotiation/coordinator.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/error_messages.h"
#include "tfring_ops/engine/negotiation/fusion.h"

namespace tfring {
namespace {

std::vector<int32_t> RanksThat(const std::vector<bool>& submitted,
                               bool wanted) {
  std::vector<int32_t> ranks;
  for (size_t rank = 0; rank < submitted.size(); ++rank) {
    if (submitted[rank] == wanted) ranks.push_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

// Returns true if `a` belongs to an earlier execution of the chain than `b`.
bool IsEarlier(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.execution > 0 && a.chain == b.chain && a.execution < b.execution;
}

double SecondsBetween(Coordinator::Time begin, Coordinator::Time end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Coordinator::Coordinator(const Options& options, Members members)
    : options_(options),
      members_(std::move(members)),
      joined_(members_.size()),
      last_added_(members_.size()) {}

void Coordinator::Add(int rank, CollectiveRequest request, Time now) {
  KnownRequest known{std::move(request)};
  Add({rank}, known, now);
}

void Coordinator::Add(absl::Span<const int> ranks, KnownRequest& known,
                      Time now) {
  // After a departure the shutdown response fails all requests in flight, on
  // every rank.
  if (!departed_.ok()) return;
  for (const int rank : ranks) last_added_[rank] = now;
  for (; !ranks.empty(); ranks.remove_prefix(1)) {
    // A rank that has joined must not submit anything: see AddOne.
    Waiting* const waiting = joined_count_ == 0 ? AgreeingWith(known) : nullptr;
    if (waiting != nullptr) return Submit(ranks, *waiting);
    AddOne(ranks.front(), known, now);
  }
}

void Coordinator::AddOne(int rank, KnownRequest& known, Time now) {
  const CollectiveRequest& request = known.request;
  if (joined_[rank]) {
    Fail({rank}, request.name,
         absl::FailedPreconditionError(absl::StrCat(
             LabelOf(members_, request), ": ", Ranks(members_, {rank}),
             " has joined, and asks for nothing before all ranks have. Wait "
             "for the join to end first.")));
    return;
  }
  if (request.kind == CollectiveKind::kJoin) {
    return Join(rank, request);
  }
  if (Waiting* const waiting = AgreeingWith(known)) {
    return Submit({rank}, *waiting);
  }
  if (FailsLate(rank, request) || FailsBehind(rank, request)) return;

  auto [found, first] = waiting_.try_emplace(request.name);
  Waiting& waiting = found->second;
  if (first) {
    waiting.number = first_number_ + static_cast<int64_t>(by_number_.size());
    by_number_.push_back(&waiting);
    waiting.request = request;
    waiting.first_rank = rank;
    waiting.since = now;
    waiting.submitted.resize(members_.size());
  }
  if (Compare(rank, request, waiting)) known.waiting_number = waiting.number;
  Submit({rank}, waiting);
}

Coordinator::Waiting* Coordinator::AgreeingWith(
    const KnownRequest& known) const {
  // A late rank may have to hear of a failure first: see FailsLate.
  if (!expired_.empty() || known.waiting_number < first_number_) return nullptr;
  return by_number_[known.waiting_number - first_number_];
}

void Coordinator::Submit(absl::Span<const int> ranks, Waiting& waiting) {
  for (const int rank : ranks) waiting.submitted[rank] = true;
  waiting.submissions += static_cast<int>(ranks.size());
  if (IsComplete(waiting)) Decide(Extract(waiting_.find(waiting.request.name)));
}

Coordinator::Waiting Coordinator::Extract(WaitingByName::iterator waiting) {
  by_number_[waiting->second.number - first_number_] = nullptr;
  for (; !by_number_.empty() && by_number_.front() == nullptr;
       ++first_number_) {
    by_number_.pop_front();
  }
  return std::move(waiting_.extract(waiting).mapped());
}

void Coordinator::ForgetWaiting() {
  first_number_ += static_cast<int64_t>(by_number_.size());
  by_number_.clear();
  waiting_.clear();
}

bool Coordinator::FailsLate(int rank, const CollectiveRequest& request) {
  // The oldest failure that this rank has not received yet.
  const auto [begin, end] = expired_.equal_range(request.name);
  for (auto expired = begin; expired != end;) {
    std::vector<int32_t>& missing = expired->second.missing;
    const auto self = std::find(missing.begin(), missing.end(), rank);
    if (self == missing.end()) {
      ++expired;
      continue;
    }
    // The rank will not submit the expired request any more.
    const bool skips = IsEarlier(expired->second.request, request);
    if (!skips) Fail({rank}, request.name, expired->second.status);
    if (IsEarlier(request, expired->second.request)) return true;
    missing.erase(self);
    expired = missing.empty() ? expired_.erase(expired) : std::next(expired);
    if (!skips) return true;
  }
  return false;
}

bool Coordinator::FailsBehind(int rank, const CollectiveRequest& request) {
  const auto found = waiting_.find(request.name);
  if (found == waiting_.end()) return false;
  const Waiting& waiting = found->second;
  if (IsEarlier(request, waiting.request)) {
    FailBehind({rank}, request, waiting.first_rank, waiting.request);
    return true;
  }
  if (IsEarlier(waiting.request, request)) {
    FailBehind(RanksThat(waiting.submitted, true), waiting.request, rank,
               request);
    Extract(found);
  }
  return false;
}

bool Coordinator::Compare(int rank, const CollectiveRequest& request,
                          Waiting& waiting) const {
  std::string difference = DescribeDifference(
      waiting.request, members_.world_ranks[waiting.first_rank], request,
      members_.world_ranks[rank]);
  if (!difference.empty()) {
    waiting.differing_ranks.push_back(rank);
    if (waiting.difference.empty()) waiting.difference = std::move(difference);
    return false;
  }
  std::vector<int64_t> sizes = CollectiveOf(request.kind).Sizes(request);
  if (sizes.empty()) return true;
  waiting.sizes.resize(members_.size());
  waiting.sizes[rank] = std::move(sizes);
  return false;
}

void Coordinator::FailBehind(std::vector<int32_t> behind,
                             const CollectiveRequest& request, int ahead,
                             const CollectiveRequest& later) {
  const std::string who = Ranks(members_, {ahead});
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      LabelOf(members_, request), ": ", Ranks(members_, behind),
      " asked for it in execution ", request.execution,
      " of the step that begins with '", request.chain, "', and ", who,
      " in execution ", later.execution, ". So ", who,
      " left the earlier one half way, by an error that the script has caught "
      "there. Let it end the process, or go on after errors on every rank."));
  Fail(std::move(behind), request.name, std::move(status));
}

void Coordinator::Join(int rank, CollectiveRequest request) {
  joined_[rank] = true;
  ++joined_count_;
  // The rank will not submit the requests that it has missed.
  for (auto it = expired_.begin(); it != expired_.end();) {
    std::vector<int32_t>& missing = it->second.missing;
    missing.erase(std::remove(missing.begin(), missing.end(), rank),
                  missing.end());
    it = missing.empty() ? expired_.erase(it) : std::next(it);
  }
  std::vector<Waiting> complete;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto waiting = it++;
    if (IsComplete(waiting->second)) complete.push_back(Extract(waiting));
  }
  // Any order is correct, because the coordinator alone decides; the order of
  // arrival is the order in the scripts.
  std::sort(
      complete.begin(), complete.end(),
      [](const Waiting& a, const Waiting& b) { return a.number < b.number; });
  for (Waiting& waiting : complete) Decide(std::move(waiting));
  if (joined_count_ < members_.size()) return;

  Waiting join;
  join.request = std::move(request);
  join.submissions = members_.size();
  join.first_rank = rank;
  ready_.push_back(std::move(join));
  joined_.assign(members_.size(), false);
  joined_count_ = 0;
}

bool Coordinator::IsComplete(const Waiting& waiting) const {
  if (waiting.submissions == members_.size()) return true;
  return joined_count_ > 0 && Missing(waiting, /*joined=*/false).empty();
}

std::vector<int32_t> Coordinator::Missing(const Waiting& waiting,
                                          bool joined) const {
  std::vector<int32_t> missing;
  for (int rank = 0; rank < members_.size(); ++rank) {
    if (!waiting.submitted[rank] && joined_[rank] == joined) {
      missing.push_back(rank);
    }
  }
  return missing;
}

void Coordinator::Decide(Waiting waiting) {
  // A difference fails the request only now, when all ranks have sent it: a
  // rank that submitted it after the failure would begin another of that name,
  // and be paired with the next step's.
  if (waiting.difference.empty()) {
    std::string why_not;
    if (waiting.submissions < members_.size()) {
      std::vector<int32_t> joined;
      for (const int32_t rank : Missing(waiting, /*joined=*/true)) {
        joined.push_back(members_.world_ranks[rank]);
      }
      why_not = CollectiveOf(waiting.request.kind)
                    .CheckRunsWithoutJoined(joined, waiting.request);
    }
    if (why_not.empty()) {
      ready_.push_back(std::move(waiting));
    } else {
      Fail(RanksThat(waiting.submitted, true), waiting.request.name,
           absl::FailedPreconditionError(
               absl::StrCat(LabelOf(members_, waiting.request), ": ", why_not,
                            ". Call it before the first rank joins, or after "
                            "the last one has.")));
    }
    return;
  }
  std::string also;
  if (waiting.differing_ranks.size() > 1) {
    std::sort(waiting.differing_ranks.begin(), waiting.differing_ranks.end());
    also = absl::StrCat(" (", Ranks(members_, waiting.differing_ranks),
                        " differ from ", Ranks(members_, {waiting.first_rank}),
                        ")");
  }
  Fail(RanksThat(waiting.submitted, true), waiting.request.name,
       absl::FailedPreconditionError(absl::StrCat(
           LabelOf(members_, waiting.request), ": ", waiting.difference, also,
           ". Run the same model and the same calls on every rank.")));
}

void Coordinator::Depart(int rank) {
  if (!departed_.ok()) return;
  departed_ = absl::UnavailableError(absl::StrCat(
      Ranks(members_, {rank}), " has shut down tfring", members_.Suffix(),
      ", and a collective needs every rank. All ranks must make the same calls "
      "before the first of them ends: look for a branch or an early end of the "
      "data on ",
      Ranks(members_, {rank}), "."));
  // Every rank that gets this fails its requests in flight, whether they were
  // answered or not.
  ForgetWaiting();
  responses_.shutdown = departed_;
}

std::vector<PendingRequest> Coordinator::Pending() const {
  std::vector<PendingRequest> pending;
  for (const auto& [name, waiting] : waiting_) {
    pending.push_back({waiting.number, &waiting.request,
                       RanksThat(waiting.submitted, true),
                       Missing(waiting, /*joined=*/false)});
  }
  std::sort(pending.begin(), pending.end(),
            [](const PendingRequest& a, const PendingRequest& b) {
              return a.number < b.number;
            });
  return pending;
}

void Coordinator::CheckDeadlock(Time now) {
  if (options_.stall_check_seconds == 0 || waiting_.size() < 2 ||
      SecondsBetween(last_deadlock_check_, now) < kDeadlockCheckSeconds) {
    return;
  }
  last_deadlock_check_ = now;
  const double quiet_seconds =
      std::min(kQuietSeconds, options_.stall_check_seconds / 4);
  std::vector<bool> quiet;
  for (const Time last : last_added_) {
    quiet.push_back(SecondsBetween(last, now) >= quiet_seconds);
  }
  const std::vector<PendingRequest> deadlock = FindDeadlock(Pending(), quiet);
  if (deadlock.empty()) return deadlock_.clear();
  std::string text = DescribeDeadlock(members_, deadlock);
  if (text == deadlock_) return;
  deadlock_ = std::move(text);
  std::set<int32_t> ranks;
  for (const PendingRequest& one : deadlock) {
    ranks.insert(one.submitted.begin(), one.submitted.end());
  }
  responses_.reports.push_back({{ranks.begin(), ranks.end()}, deadlock_});
}

bool Coordinator::OneHangs(const std::vector<int32_t>& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [this](int32_t rank) {
    return std::none_of(waiting_.begin(), waiting_.end(), [=](const auto& one) {
      return one.second.submitted[rank];
    });
  });
}

absl::Status Coordinator::CheckStalls(Time now,
                                      const std::vector<int32_t>& silent) {
  CheckDeadlock(now);
  const double report = options_.stall_check_seconds;
  const double end = options_.stall_shutdown_seconds;
  std::map<std::string, absl::Status> failed;
  for (auto& [name, waiting] : waiting_) {
    const double waited = SecondsBetween(waiting.since, now);
    const std::vector<int32_t> missing = Missing(waiting, /*joined=*/false);
    if (report > 0 && !waiting.reported && waited >= report) {
      waiting.reported = true;
      if (!std::includes(silent.begin(), silent.end(), missing.begin(),
                         missing.end())) {
        responses_.reports.push_back(
            {RanksThat(waiting.submitted, true), DescribeStall(waiting, now)});
      }
    }
    if (end > 0 && waited >= end) {
      if (options_.replaces_ranks && OneHangs(missing)) {
        return absl::UnavailableError(DescribeStall(waiting, now));
      }
      failed[name] = absl::DeadlineExceededError(DescribeStall(waiting, now));
    }
  }
  for (auto& [name, status] : failed) {
    const auto found = waiting_.find(name);
    Waiting waiting = Extract(found);
    Fail(RanksThat(waiting.submitted, true), name, status);
    expired_.emplace(
        name, Expired{Missing(waiting, /*joined=*/false), std::move(status),
                      std::move(waiting.request)});
  }
  return absl::OkStatus();
}

// Note [Requests that share a message]
// A ring cuts a message into chunks, and adds up each chunk in an order of
// ranks of its own.  So the bits of a sum of three and more ranks depend on the
// place of its elements in the message, and thus on the rest of the message.
// The tensors of one request are always the same, but which requests become
// ready together depends on timing.  Options::deterministic keeps requests
// apart.
ResponseList Coordinator::TakeResponses() {
  ResponseList response_list = std::exchange(responses_, {});
  Fusion fusion(options_);
  int submissions = 0;  // of the bucket's requests
  for (Waiting& ready : ready_) {
    // An average divides by the ranks that have submitted: a bucket has one
    // number of them.
    if (ready.submissions != submissions) fusion.Restart();
    submissions = ready.submissions;
    if (!fusion.Joins(ready.request)) response_list.responses.emplace_back();
    Response& bucket = response_list.responses.back();
    bucket.names.push_back(ready.request.name);
    AddSizes(std::move(ready.sizes), bucket);
    if (ready.request.kind == CollectiveKind::kJoin) {
      bucket.last_joined = members_.world_ranks[ready.first_rank];
    } else if (ready.submissions < members_.size()) {
      bucket.contributors = ready.submissions;
      bucket.requests.push_back(ready.request);
    }
  }
  FindPeriods(response_list);
  ready_.clear();
  if (!response_list.responses.empty()) response_list.schedule = NextSchedule();
  if (!response_list.schedule.empty()) ForgetWaiting();
  return response_list;
}

void Coordinator::FindPeriods(const ResponseList& response_list) {
  if (!response_list.errors.empty() || !response_list.reports.empty() ||
      !response_list.shutdown.ok()) {
    return periods_.Reset();
  }
  for (Waiting& ready : ready_) {
    if (ready.submissions == members_.size() && !ready.request.is_nameless &&
        CollectiveOf(ready.request.kind).is_cacheable()) {
      periods_.Add(std::move(ready.request));
    } else {
      periods_.Reset();
    }
  }
}

std::vector<CollectiveRequest> Coordinator::NextSchedule() const {
  if (members_.size() == 1 || joined_count_ > 0) return {};
  std::vector<CollectiveRequest> period = periods_.Period();
  // A request that is not in the schedule would make ranks leave it at once.
  for (const auto& one : waiting_) {
    const CollectiveRequest& waiting = one.second.request;
    const bool scheduled = std::any_of(
        period.begin(), period.end(),
        [&](const auto& item) { return SameRequest(item, waiting); });
    if (!scheduled) return {};
  }
  return period;
}

void Coordinator::Fail(std::vector<int32_t> ranks, const std::string& name,
                       absl::Status status) {
  responses_.errors.push_back({std::move(ranks), name, std::move(status)});
}

std::string Coordinator::DescribeStall(const Waiting& waiting, Time now) const {
  const std::vector<int32_t> missing = Missing(waiting, /*joined=*/false);
  const std::vector<int32_t> joined = Missing(waiting, /*joined=*/true);
  const std::string also =
      joined.empty()
          ? ""
          : absl::StrCat(" (", Ranks(members_, joined), " joined and",
                         joined.size() == 1 ? " is" : " are",
                         " not waited for)");
  return absl::StrCat(
      LabelOf(members_, waiting.request), " has waited ",
      std::lround(SecondsBetween(waiting.since, now)), " s for ",
      Ranks(members_, missing), "; ",
      Ranks(members_, RanksThat(waiting.submitted, true)), " asked for it",
      also, DescribeWaits(members_, Pending(), missing),
      ". All ranks must make the same calls: look for a branch "
      "or an early end of the data on ",
      Ranks(members_, missing), ", or for a process that hangs.");
}

}  // namespace tfring
