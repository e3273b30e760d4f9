// A rank's side of the negotiation.  It sends this rank's requests and receives
// response lists; rank 0 of the process set also decides these.  While a cached
// schedule (cached_schedule.h) holds, neighbors send each other progress
// updates instead.
//
// Not thread-safe.
//
// Invariants:
// - Every rank gets the same response lists in the same order; the items of a
//   cached schedule are response lists too.
// - Progress never waits: the engine calls it while a response list is being
//   executed, so that the next one is there when it ends.
// - Rank 0 decides at most one response list ahead, so that requests that
//   arrive meanwhile may share a message.
// - Between two ranks, messages of a cached schedule and other messages never
//   mix: no rank reads past a neighbor's last update before the schedule is
//   over.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_NEGOTIATOR_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_NEGOTIATOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/cached_schedule.h"
#include "tfring_ops/engine/negotiation/coordinator.h"
#include "tfring_ops/engine/negotiation/heartbeats.h"
#include "tfring_ops/engine/negotiation/mailbox.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class Negotiator {
 public:
  static constexpr int kCoordinatorRank = 0;

  struct Decision {
    ResponseList response_list;
    int64_t agreed_ns;  // for the timeline
    // How many of this rank's messages have to leave before the decision runs.
    int64_t messages = 0;
  };

  // Nobody else may use `control`.
  // REQUIRES: the arguments outlive this.
  Negotiator(const Options& options, const Members& members, Transport& control,
             const Clock& clock = SteadyClock());

  // Sends `requests`, and with `shutdown` a shutdown request, and receives the
  // messages of other ranks.  Returns true if there was anything to send or to
  // receive.
  //
  // After its shutdown request this rank sends nothing more, because the
  // shutdown response will fail later requests.  Every rank answers a shutdown
  // response with a shutdown request.
  absl::StatusOr<bool> Progress(std::vector<CollectiveRequest> requests,
                                bool shutdown);

  // Returns the oldest response list that has not been returned yet, once it
  // has left for every rank that gets it from this one.
  absl::StatusOr<std::optional<Decision>> Next();
  // Returns true if there is such a list, even if it still has to leave.
  bool HasNext() const { return !decisions_.empty(); }

  // The ranks that are silent.
  const std::vector<Heartbeats::Silent>& silent() const {
    return heartbeats_.silent();
  }
  // How long `Progress` may be put off without delaying heartbeats.
  Heartbeats::Clock::duration heartbeat_look() const {
    return heartbeats_.look();
  }

  // Returns true once no other rank will send this one anything more.
  bool over() const;

  // Keeps the memory of messages that are on their way: see
  // Transport::HasAbandoned.
  void KeepMemory() { mailbox_.KeepMemory(); }

  // Returns when all messages have left.
  absl::Status Flush();

 private:
  // A request that was sent to the coordinator and that it has not decided yet.
  struct Asked {
    int64_t number;  // Counts requests in the order of sending.
    CollectiveRequest request;
  };

  absl::StatusOr<bool> ProgressMessages(Clock::time_point now);
  // Sends the unsent requests, unless a cached schedule holds.
  bool SendRequests();
  // Rank 0: passes the next requests of `peers`, which have all sent `message`,
  // to the coordinator.
  absl::Status AddRequests(const std::vector<int>& peers,
                           const std::string& message);
  // Rank 0: `rank` sends no further requests.
  void Depart(int rank);
  absl::StatusOr<bool> ReceiveRequests();
  absl::StatusOr<bool> ReceiveResponses();
  // On rank 0, decides the next response list.
  absl::Status Decide(Clock::time_point now);
  // Queues a response list for Next.
  void Accept(ResponseList response_list);

  // Does the work of Progress while a cached schedule holds.
  absl::StatusOr<bool> FollowSchedule(Clock::time_point now);
  void BeginSchedule(std::vector<CollectiveRequest> items);
  void EndSchedule();
  // Sends the neighbors progress updates if there is news for them.  Returns
  // true if it has sent any.
  bool SendProgress();
  void SendTo(const std::vector<int>& ranks, const ProgressUpdate& update);
  // Returns true if `request` waits until what has been agreed has run, so that
  // later requests can share a message with it.
  bool KeepsBack(const CollectiveRequest& request) const;
  absl::StatusOr<bool> ReceiveProgress();
  // Rank 0: receives requests that were sent before their senders had heard of
  // the schedule, and would keep heartbeats behind them from being heard.
  // There are no further ones: if rank 0 reads only from some of the ranks, a
  // schedule is over there first.
  absl::Status DropRequests(Clock::time_point now);
  // Queues the items that all ranks have requested.  Returns true if there are
  // any.
  bool TakeScheduledItems();
  // Leaves the cached schedule if this rank has waited for a while.
  void CheckPatience(Clock::time_point now);

  const Options& options_;
  const Members& members_;
  const Clock& clock_;
  const int rank_;
  const double patience_seconds_;
  const ProgressNeighbors neighbors_;
  const std::vector<int> all_neighbors_;
  Mailbox mailbox_;
  Heartbeats heartbeats_;
  std::optional<Coordinator> coordinator_;  // on rank 0
  RequestListDecoder decoder_;              // for rank 0
  // Which ranks have sent a shutdown request.  Ranks other than 0 know only
  // their own.
  std::vector<bool> left_;
  bool shutdown_received_ = false;        // the shutdown response
  bool shutdown_requested_ = false;       // by the engine
  std::deque<CollectiveRequest> unsent_;  // in the order of submission
  std::unordered_map<std::string, Asked> asked_;
  int64_t asked_count_ = 0;
  std::deque<Decision> decisions_;              // for Next
  Clock::time_point last_look_ = clock_.Now();  // of rank 0, for what may wait

  // While a cached schedule holds:
  std::optional<CachedSchedule> schedule_;
  int64_t schedules_ = 0;  // that have begun
  // For items that are still to be taken: how many of them this rank has
  // reported to the neighbors, and how many messages it had sent by then.
  struct Sent {
    int64_t items;
    int64_t messages;
  };
  std::deque<Sent> sent_;
  // The time since which this rank has waited.
  Clock::time_point waiting_since_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_NEGOTIATOR_H_
