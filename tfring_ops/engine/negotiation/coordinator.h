// The coordinator's side of the negotiation: collects the requests of all ranks
// and makes the responses: a bucket to run once all ranks have sent a request,
// or the error for all.
//
// Pure bookkeeping on one rank of the process set: no messages, no threads, no
// clock of its own.  Not thread-safe.  Ranks are numbers in the set; the texts
// of errors and reports name the ranks of the world.
//
// Invariants:
// - A request runs, or fails, once every rank that has not joined has submitted
//   it; it fails earlier only when it has stalled or a rank has shut down.
// - A rank that submits a stalled request later gets its failure then, so that
//   no rank takes the next request of that name for the old one.
// - Requests of different executions of a chain never run together: the ranks
//   in the earlier one get an error, because it will never be complete.
// - A join is complete once all ranks have joined.  Until then no rank waits
//   for a joined rank, and joined ranks submit no requests.
// - A cached schedule begins only if it contains all requests that wait: any
//   other request would make the ranks leave the schedule.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_COORDINATOR_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_COORDINATOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/cached_schedule.h"
#include "tfring_ops/engine/negotiation/deadlock.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

class Coordinator {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Coordinator(const Options& options, Members members);

  // Notes that `rank` is ready for `request`.
  void Add(int rank, CollectiveRequest request, Time now);
  // Notes that each of `ranks` is ready for `known`.  A request that was added
  // for another rank and agreed with the waiting one is not compared again.
  void Add(absl::Span<const int> ranks, KnownRequest& known, Time now);

  // Notes that `rank` has shut down: nothing can be agreed on any more.
  void Depart(int rank);

  // Reports requests that some ranks have not sent, and fails requests that
  // have waited too long.  Ranks that wait for one another are reported sooner;
  // see deadlock.h.  The `silent` ones have been reported already.
  //
  // If ranks are replaced, an error ends the part in the job of ranks that
  // hang: another rank has waited too long for them, and they wait for nothing
  // themselves.
  absl::Status CheckStalls(Time now, const std::vector<int32_t>& silent = {});

  // Returns the decisions since the last call.  If they begin a cached
  // schedule, the coordinator forgets all requests that wait; ranks send them
  // again when the schedule ends.
  // REQUIRES: no cached schedule holds.
  ResponseList TakeResponses();

  // Notes that the cached schedule has ended, after `items`.
  void ScheduleHasEnded(int64_t items) { periods_.ScheduleHasEnded(items); }

 private:
  // A request that some ranks have submitted.
  struct Waiting {
    int64_t number;  // in the order in which names were first received
    CollectiveRequest request;  // as its first rank sent it
    int first_rank;
    Time since;
    std::vector<bool> submitted;  // by rank
    int submissions = 0;
    bool reported = false;
    // The sizes by rank; empty if the kind has none.  See Collective::Sizes.
    std::vector<std::vector<int64_t>> sizes;
    // How other ranks' requests differ from `request`; empty if they do not.
    std::string difference;
    std::vector<int32_t> differing_ranks;
  };
  using WaitingByName = std::unordered_map<std::string, Waiting>;
  // A request that has failed by stalling, kept for the late ranks.
  struct Expired {
    std::vector<int32_t> missing;
    absl::Status status;
    CollectiveRequest request;
  };

  // Adds a request of one rank, which has not departed.
  void AddOne(int rank, KnownRequest& known, Time now);
  void Fail(std::vector<int32_t> ranks, const std::string& name,
            absl::Status status);
  // Fails `request` of a late rank if a request of that name has stalled that
  // the rank did not submit.  Returns true if it has.
  bool FailsLate(int rank, const CollectiveRequest& request);
  // Returns the waiting request that `known` is known to agree with; null if
  // there is none, or if other things have to be compared.
  Waiting* AgreeingWith(const KnownRequest& known) const;
  // Notes that `ranks` have submitted `waiting`.  If no other rank is waited
  // for, decides the request, which ends `waiting`.
  void Submit(absl::Span<const int> ranks, Waiting& waiting);
  // Removes a request from those that wait.
  Waiting Extract(WaitingByName::iterator waiting);
  // Removes all requests that wait.
  void ForgetWaiting();
  // Fails `request` or the waiting request of its name, whichever belongs to an
  // earlier execution of the chain.  Returns true if it was `request`.
  bool FailsBehind(int rank, const CollectiveRequest& request);
  // Notes how `request` differs from `waiting`, or its sizes.  Returns true if
  // there is no difference and there are no sizes.
  bool Compare(int rank, const CollectiveRequest& request,
               Waiting& waiting) const;
  // Fails `request` on `behind`: `ahead` has left its execution of the chain,
  // because it has submitted the same request in a later one.
  void FailBehind(std::vector<int32_t> behind, const CollectiveRequest& request,
                  int ahead, const CollectiveRequest& later);
  // Marks `rank` as joined; `request` is its join.
  void Join(int rank, CollectiveRequest request);
  // Returns true if no rank is waited for any more.
  bool IsComplete(const Waiting& waiting) const;
  // REQUIRES: IsComplete.
  void Decide(Waiting waiting);
  // Looks for a period in the requests of `response_list`, which are ready_.
  void FindPeriods(const ResponseList& response_list);
  // The cached schedule to follow now; empty if there is none.
  std::vector<CollectiveRequest> NextSchedule() const;
  // The ranks that have not submitted `waiting`: the late ones, or the joined
  // ones.
  std::vector<int32_t> Missing(const Waiting& waiting, bool joined) const;
  // Returns true if one of `ranks` has submitted nothing that waits.
  bool OneHangs(const std::vector<int32_t>& ranks) const;
  std::string DescribeStall(const Waiting& waiting, Time now) const;
  // Returns the waiting requests in the order of arrival.
  std::vector<PendingRequest> Pending() const;
  void CheckDeadlock(Time now);

  const Options options_;
  const Members members_;
  WaitingByName waiting_;
  // The elements of waiting_ by number, from first_number_ on; null for those
  // that no longer wait.
  std::deque<Waiting*> by_number_;
  int64_t first_number_ = 0;
  std::multimap<std::string, Expired> expired_;
  // Agreed requests that are in no response list yet, in the order of
  // execution.
  std::vector<Waiting> ready_;
  PeriodFinder periods_;
  ResponseList responses_;  // without the requests of ready_
  absl::Status departed_;
  std::vector<bool> joined_;  // by rank
  int joined_count_ = 0;
  std::vector<Time> last_added_;  // by rank
  Time last_deadlock_check_;
  std::string deadlock_;  // as reported last
};

// Describes how two ranks' requests of one name differ: "shapes differ. Rank
// 0 sent float32 (784, 128); rank 2 sent float32 (784, 64)".  Empty if they
// agree.  Shapes and names may differ as far as the kind of collective allows,
// and so may all of a tensor's name before its last part, "dense_1/kernel" and
// "model/dense/kernel".
std::string DescribeDifference(const CollectiveRequest& a, int rank_a,
                               const CollectiveRequest& b, int rank_b);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_COORDINATOR_H_
