// A rank's part in the agreement: says what this rank is ready for and hears
// what is to be done; rank 0 of the process set also decides it, unless a plan
// (plan.h) has done so.
//
// Not thread-safe.
//
// Invariants:
// - Every rank is given the same verdicts in the same order; a plan's items are
//   verdicts too.
// - Exchange never waits: it may be called while a verdict is being carried
//   out, so that the next one is there when it ends.
// - Rank 0 decides one verdict ahead and no more: what becomes ready meanwhile
//   may share a message.
// - Between two ranks, what is said under a plan and what is not never mix: a
//   rank that has left is not listened to before the plan is over.
#ifndef TFRING_OPS_ENGINE_AGREEMENT_H_
#define TFRING_OPS_ENGINE_AGREEMENT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/coordinator.h"
#include "tfring_ops/engine/mailbox.h"
#include "tfring_ops/engine/messages.h"
#include "tfring_ops/engine/plan.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class Agreement {
 public:
  static constexpr int kCoordinatorRank = 0;

  struct Decision {
    Verdict verdict;
    int64_t agreed_ns;  // for the timeline
    // How many of this rank's messages have to leave before it is carried out.
    int64_t messages = 0;
  };

  // Takes `control` for itself.
  // REQUIRES: the arguments outlive this.
  Agreement(const Options& options, const Members& members, Transport& control);

  // Says that this rank is ready for `requests`, and, with `goodbye`, that it
  // will have no more; hears what others have said.  True if there was
  // anything to say or to hear.
  //
  // After this rank's goodbye nothing is said any more: the farewell will
  // fail it.  A farewell is answered with a goodbye by itself.
  absl::StatusOr<bool> Exchange(std::vector<CollectiveRequest> requests,
                                bool goodbye);

  // The oldest verdict that has not been given out, if there is one.  Whoever
  // hears of it through this rank has heard of it.
  absl::StatusOr<std::optional<Decision>> Next();

  // Whether nobody will say anything more to this rank.
  bool over() const;

  // Returns when all that was said has left.
  absl::Status Flush();

 private:
  using Clock = std::chrono::steady_clock;

  // Said to the coordinator and not decided.
  struct Asked {
    int64_t number;  // in the order in which they were said
    CollectiveRequest request;
  };

  // Without a plan: says what is unsaid.
  bool Tell();
  // Rank 0: takes in what `rank` has to say.
  void Hear(int rank, ReadyList list);
  absl::StatusOr<bool> HearOthers();
  absl::StatusOr<bool> HearCoordinator();
  // Rank 0.
  void Decide();
  // Takes in what has been decided.
  void Accept(Verdict verdict);

  // Under a plan: all that there is to do.  True if there was something.
  absl::StatusOr<bool> FollowPlan();
  void BeginPlan(std::vector<CollectiveRequest> items);
  void LeavePlan();
  void EndPlan();
  // Tells all ranks what they have not heard yet.  True if there is anything.
  bool Announce();
  absl::StatusOr<bool> HearAnnouncements();
  // True if there are any.
  bool TakePlannedItems();
  // Keeps the promises of the stall time-outs while this rank waits for others.
  absl::Status CheckPlanStalls();

  const Options& options_;
  const Members& members_;
  const int rank_;
  const double patience_seconds_;
  Mailbox mailbox_;
  std::optional<Coordinator> coordinator_;  // on rank 0
  std::vector<bool> left_;  // said goodbye; on other ranks than 0 only oneself
  bool farewell_ = false;   // decided, or heard
  bool goodbye_ = false;    // to be said
  std::deque<CollectiveRequest> unsaid_;  // in the order of submission
  std::unordered_map<std::string, Asked> asked_;
  int64_t asked_count_ = 0;
  std::deque<Decision> decisions_;  // not given out yet
  Clock::time_point last_stall_check_ = Clock::now();

  // Under a plan.
  std::optional<StepPlan> plan_;
  // What this rank has said, while items are still to be taken that it said so
  // of, and how many messages there had been then.
  struct Said {
    Announcement announcement;
    int64_t messages;
  };
  std::deque<Said> said_;
  // Since when this rank has waited for the others: for the next item, or, when
  // it has left, for their leaving.
  Clock::time_point waiting_since_;
  bool stall_reported_ = false;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_AGREEMENT_H_
