#include "tfring_ops/engine/agreement.h"

#include <memory>
#include <utility>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

constexpr std::chrono::milliseconds kStallCheckPeriod{50};

}  // namespace

Agreement::Agreement(const Options& options, const Members& members,
                     Transport& control)
    : members_(members),
      rank_(control.rank()),
      mailbox_(control),
      left_(control.size()) {
  if (rank_ == kCoordinatorRank) coordinator_.emplace(options, members);
}

absl::StatusOr<bool> Agreement::Exchange(
    std::vector<CollectiveRequest> requests, bool goodbye) {
  bool progressed = false;
  // After a farewell too: the coordinator waits for every rank's goodbye.
  ReadyList list{std::move(requests), goodbye || farewell_};
  if (!left_[rank_] && (!list.requests.empty() || list.goodbye)) {
    progressed = true;
    left_[rank_] = list.goodbye;
    if (coordinator_) {
      Hear(rank_, std::move(list));
    } else {
      mailbox_.Send(kCoordinatorRank,
                    std::make_shared<const std::string>(Encode(list)));
    }
  }
  TFRING_ASSIGN_OR_RETURN(const bool heard,
                          coordinator_ ? HearOthers() : HearCoordinator());
  if (coordinator_) Decide();
  return progressed || heard;
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
  farewell_ = !verdict.farewell.ok();
  Timeline::Global().RecordVerdict(members_.id);
  decisions_.push_back({std::move(verdict), Timeline::Global().Now()});
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
  farewell_ = !verdict.farewell.ok();
  Timeline::Global().RecordVerdict(members_.id);
  decisions_.push_back({std::move(verdict), Timeline::Global().Now()});
}

absl::StatusOr<std::optional<Agreement::Decision>> Agreement::Next() {
  if (decisions_.empty()) return std::nullopt;
  // Or rank 0 would wait for data from one that was not told to send: a message
  // moves on only while its own transport is asked.
  if (coordinator_) TFRING_RETURN_IF_ERROR(Flush());
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

}  // namespace tfring
