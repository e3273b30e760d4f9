#include "tfring_ops/engine/agreement.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/engine/wording.h"

namespace tfring {
namespace {

constexpr std::chrono::milliseconds kStallCheckPeriod{50};

// How long a rank waits under a plan before it leaves: see CheckPlanStalls.
double PatienceSeconds(const Options& options) {
  double patience = std::numeric_limits<double>::infinity();
  for (const double limit :
       {options.stall_check_seconds, options.stall_shutdown_seconds}) {
    if (limit > 0) patience = std::min({patience, limit / 10, 1.0});
  }
  return patience;
}

}  // namespace

Agreement::Agreement(const Options& options, const Members& members,
                     Transport& control)
    : options_(options),
      members_(members),
      rank_(control.rank()),
      patience_seconds_(PatienceSeconds(options)),
      mailbox_(control),
      left_(control.size()) {
  if (rank_ == kCoordinatorRank) coordinator_.emplace(options, members);
}

absl::StatusOr<bool> Agreement::Exchange(
    std::vector<CollectiveRequest> requests, bool goodbye) {
  bool progressed = false;
  goodbye_ = goodbye;
  for (CollectiveRequest& request : requests) {
    unsaid_.push_back(std::move(request));
  }
  if (plan_) {
    TFRING_ASSIGN_OR_RETURN(progressed, FollowPlan());
    if (plan_) return progressed;
  }
  if (Tell()) progressed = true;
  TFRING_ASSIGN_OR_RETURN(const bool heard,
                          coordinator_ ? HearOthers() : HearCoordinator());
  if (coordinator_) Decide();
  return progressed || heard;
}

bool Agreement::Tell() {
  // After a farewell too: the coordinator waits for every rank's goodbye.
  ReadyList list{{}, goodbye_ || farewell_};
  if (left_[rank_] || (unsaid_.empty() && !list.goodbye)) return false;
  list.requests.assign(std::make_move_iterator(unsaid_.begin()),
                       std::make_move_iterator(unsaid_.end()));
  unsaid_.clear();
  left_[rank_] = list.goodbye;
  if (coordinator_) {
    Hear(rank_, list);
  } else {
    mailbox_.Send(kCoordinatorRank,
                  std::make_shared<const std::string>(Encode(list)));
  }
  for (CollectiveRequest& request : list.requests) {
    const std::string name = request.name;
    asked_.insert_or_assign(name, Asked{asked_count_++, std::move(request)});
  }
  return true;
}

absl::StatusOr<bool> Agreement::HearOthers() {
  bool heard = false;
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (peer == kCoordinatorRank || left_[peer]) continue;
    TFRING_ASSIGN_OR_RETURN(std::optional<std::string> message,
                            mailbox_.Poll(peer));
    if (!message) continue;
    TFRING_ASSIGN_OR_RETURN(ReadyList list, DecodeReadyList(*message));
    Hear(peer, std::move(list));
    heard = true;
  }
  return heard;
}

void Agreement::Hear(int rank, ReadyList list) {
  const Clock::time_point now = Clock::now();
  for (CollectiveRequest& request : list.requests) {
    coordinator_->Add(rank, std::move(request), now);
  }
  if (list.goodbye) {
    left_[rank] = true;
    coordinator_->Depart(rank);
  }
}

absl::StatusOr<bool> Agreement::HearCoordinator() {
  // The farewell was the last word.
  if (farewell_) return false;
  TFRING_ASSIGN_OR_RETURN(std::optional<std::string> message,
                          mailbox_.Poll(kCoordinatorRank));
  if (!message) return false;
  TFRING_ASSIGN_OR_RETURN(Verdict verdict, DecodeVerdict(*message));
  Accept(std::move(verdict));
  return true;
}

void Agreement::Decide() {
  const Clock::time_point now = Clock::now();
  if (now - last_stall_check_ > kStallCheckPeriod) {
    last_stall_check_ = now;
    coordinator_->CheckStalls(now);
  }
  if (!decisions_.empty()) return;
  Verdict verdict = coordinator_->TakeVerdict();
  if (verdict.empty()) return;
  const auto message = std::make_shared<const std::string>(Encode(verdict));
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (peer != kCoordinatorRank) mailbox_.Send(peer, message);
  }
  Accept(std::move(verdict));
}

void Agreement::Accept(Verdict verdict) {
  for (const Verdict::Failure& failure : verdict.failures) {
    const std::vector<int32_t>& ranks = failure.ranks;
    if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end()) {
      asked_.erase(failure.name);
    }
  }
  for (const Verdict::Bucket& bucket : verdict.buckets) {
    for (const std::string& name : bucket.names) asked_.erase(name);
  }
  farewell_ = !verdict.farewell.ok();
  if (!verdict.plan.empty()) BeginPlan(std::move(verdict.plan));
  Timeline::Global().RecordVerdict(members_.id);
  decisions_.push_back({std::move(verdict), Timeline::Global().Now(),
                        coordinator_ ? mailbox_.sent() : 0});
}

absl::StatusOr<std::optional<Agreement::Decision>> Agreement::Next() {
  if (decisions_.empty()) return std::nullopt;
  // Or this rank would wait for data from one that was not told to send: a
  // message moves on only while its own transport is asked.  And for no message
  // more: its receiver may already wait for this rank's data.
  TFRING_RETURN_IF_ERROR(mailbox_.Flush(decisions_.front().messages));
  Decision decision = std::move(decisions_.front());
  decisions_.pop_front();
  return decision;
}

bool Agreement::over() const {
  if (!coordinator_) return farewell_ && left_[rank_];
  for (const bool left : left_) {
    if (!left) return false;
  }
  return farewell_;
}

absl::Status Agreement::Flush() { return mailbox_.Flush(); }

// ---- Under a plan ----

// What this rank has said to the coordinator without an answer is said again:
// that has forgotten it, or will not listen to it.
void Agreement::BeginPlan(std::vector<CollectiveRequest> items) {
  plan_.emplace(std::move(items), members_.size(), rank_);
  said_ = {{plan_->announced(), mailbox_.sent()}};
  std::vector<Asked> again;
  for (auto& [name, asked] : asked_) again.push_back(std::move(asked));
  asked_.clear();
  std::sort(again.begin(), again.end(),
            [](const Asked& a, const Asked& b) { return a.number > b.number; });
  for (Asked& asked : again) unsaid_.push_front(std::move(asked.request));
  left_[rank_] = false;
  waiting_since_ = Clock::now();
  stall_reported_ = false;
}

absl::StatusOr<bool> Agreement::FollowPlan() {
  while (!unsaid_.empty() && !plan_->HasLeft(rank_)) {
    if (plan_->IsNext(unsaid_.front())) {
      plan_->Submit(std::move(unsaid_.front()));
      unsaid_.pop_front();
    } else {
      LeavePlan();
    }
  }
  if (goodbye_) LeavePlan();
  // Before it listens: others may wait for nothing else.
  const bool said = Announce();
  TFRING_ASSIGN_OR_RETURN(const bool heard, HearAnnouncements());
  const bool taken = TakePlannedItems();
  if (plan_->SomeoneHasLeft()) LeavePlan();
  if (!plan_->over()) TFRING_RETURN_IF_ERROR(CheckPlanStalls());
  const bool left = Announce();
  if (plan_->over()) EndPlan();
  return said || heard || taken || left;
}

void Agreement::LeavePlan() {
  if (plan_->HasLeft(rank_)) return;
  plan_->Leave();
  waiting_since_ = Clock::now();
}

void Agreement::EndPlan() {
  unsaid_.insert(unsaid_.begin(), plan_->pending().begin(),
                 plan_->pending().end());
  if (coordinator_) coordinator_->PlanHasEnded(plan_->taken());
  plan_.reset();
}

bool Agreement::Announce() {
  const Announcement& news = plan_->announced();
  const Announcement& before = said_.back().announcement;
  if (news.count == before.count && news.leaves == before.leaves) return false;
  const auto message = std::make_shared<const std::string>(Encode(news));
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (peer != rank_) mailbox_.Send(peer, message);
  }
  said_.push_back({news, mailbox_.sent()});
  return true;
}

absl::StatusOr<bool> Agreement::HearAnnouncements() {
  bool heard = false;
  for (int peer = 0; peer < members_.size(); ++peer) {
    while (peer != rank_ && !plan_->HasLeft(peer)) {
      TFRING_ASSIGN_OR_RETURN(const std::optional<std::string> message,
                              mailbox_.Poll(peer));
      if (!message) break;
      heard = true;
      // Said before its sender had heard of the plan; it will say it again.
      if (coordinator_ && IsReadyList(*message)) continue;
      TFRING_ASSIGN_OR_RETURN(const Announcement announcement,
                              DecodeAnnouncement(*message));
      TFRING_RETURN_IF_ERROR(plan_->Hear(peer, announcement));
    }
  }
  return heard;
}

bool Agreement::TakePlannedItems() {
  bool taken = false;
  while (const std::optional<CollectiveRequest> request = plan_->TakeNext()) {
    taken = true;
    waiting_since_ = Clock::now();
    while (said_.front().announcement.count < plan_->taken()) said_.pop_front();
    Verdict verdict;
    verdict.buckets.emplace_back().names = {request->name};
    decisions_.push_back(
        {std::move(verdict), Timeline::Global().Now(), said_.front().messages});
  }
  return taken;
}

// Under a plan nobody reports a stall.  So a rank that has waited for a while
// leaves, and then the coordinator does; it counts from there, which is why the
// while is short.  But nobody leaves whose process hangs.
absl::Status Agreement::CheckPlanStalls() {
  const Clock::time_point now = Clock::now();
  if (plan_->pending().empty() && unsaid_.empty()) {
    waiting_since_ = now;
    return absl::OkStatus();
  }
  const double waited =
      std::chrono::duration<double>(now - waiting_since_).count();
  if (!plan_->HasLeft(rank_)) {
    if (waited >= patience_seconds_) LeavePlan();
    return absl::OkStatus();
  }
  const auto describe = [&] {
    const CollectiveRequest& request =
        plan_->pending().empty() ? unsaid_.front() : plan_->pending().front();
    return DescribeSilence(members_, request, waited, rank_,
                           plan_->Remaining());
  };
  if (options_.stall_check_seconds > 0 && !stall_reported_ &&
      waited >= options_.stall_check_seconds) {
    stall_reported_ = true;
    LogWarning(members_.world_ranks[rank_], describe());
  }
  if (options_.stall_shutdown_seconds > 0 &&
      waited >= options_.stall_shutdown_seconds) {
    return absl::DeadlineExceededError(describe() + kEndOfJob);
  }
  return absl::OkStatus();
}

}  // namespace tfring
