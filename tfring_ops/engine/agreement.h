// A rank's part in the agreement: says what this rank is ready for and hears
// what is to be done; rank 0 of the process set also decides it.
//
// Not thread-safe.
//
// Invariants:
// - Every rank is given the same verdicts in the same order.
// - Exchange never waits: it may be called while a verdict is being carried
//   out, so that the next one is there when it ends.
// - Rank 0 decides one verdict ahead and no more: what becomes ready meanwhile
//   may share a message.
#ifndef TFRING_OPS_ENGINE_AGREEMENT_H_
#define TFRING_OPS_ENGINE_AGREEMENT_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/coordinator.h"
#include "tfring_ops/engine/mailbox.h"
#include "tfring_ops/engine/messages.h"
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

  // The oldest verdict that has not been given out, if there is one.  All
  // ranks hear of it before rank 0 is given it.
  absl::StatusOr<std::optional<Decision>> Next();

  // Whether nobody will say anything more to this rank.
  bool over() const;

  // Returns when all that was said has left.
  absl::Status Flush();

 private:
  using Clock = std::chrono::steady_clock;

  // Rank 0: takes in what `rank` has to say.
  void Hear(int rank, ReadyList list);
  absl::StatusOr<bool> HearOthers();
  absl::StatusOr<bool> HearCoordinator();
  // Rank 0.
  void Decide();

  const Members& members_;
  const int rank_;
  Mailbox mailbox_;
  std::optional<Coordinator> coordinator_;  // on rank 0
  std::vector<bool> left_;  // said goodbye; on other ranks than 0 only oneself
  bool farewell_ = false;   // decided, or heard
  std::deque<Decision> decisions_;  // not given out yet
  Clock::time_point last_stall_check_ = Clock::now();
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_AGREEMENT_H_
