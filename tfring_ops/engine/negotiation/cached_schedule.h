// The cached schedule: a repeated step is agreed without the coordinator.
//
// A training loop asks for the same buckets in the same order, step after step.
// When the coordinator has seen a period of its response lists repeat, it makes
// that period the cached schedule, says so in the response list, and decides
// nothing more.  From then on each rank sends every other a progress update:
// how many items of the schedule, going round and round, it has requested.  An
// item runs on a rank once that rank has received it from all.  That is one
// message one way, where a response list takes a way to the coordinator and a
// way back.
//
// A rank that requests anything else leaves the schedule, by its last progress
// update; each rank that receives that leaves too.  When all have left, all
// know the counts at which they left, and so every rank runs the items up to
// the least of them.  The items that a rank has requested beyond that it sends
// to the coordinator, as without a schedule.
//
// Pure bookkeeping: no messages, no threads, no clock.  Not thread-safe.
//
// Note [Which process sets have cached schedules]
// Each item costs a message from every rank to every other, where a response
// list costs two for each rank.  With more than kMaxCachedRanks a rank would
// spend longer on looking for them than the way it saves.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_CACHED_SCHEDULE_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_CACHED_SCHEDULE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

inline constexpr int kMaxCachedRanks = 32;

// Returns true if the coordinator would accept the two as the same request, of
// two ranks or of two steps.  An equivalence: all ranks whose requests match an
// item of a cached schedule match one another.
bool SameRequest(const CollectiveRequest& a, const CollectiveRequest& b);

// Finds what repeats in the coordinator's response lists.
class PeriodFinder {
 public:
  // A longer period is none.
  static constexpr int kMaxPeriod = 128;

  // All ranks are to run `request`, as a bucket of its own.
  void Add(CollectiveRequest request);
  // Forgets the period: something else has happened.
  void Reset();

  // The last period, when it has repeated often enough to be a cached schedule;
  // what is to come next is its first request.  Empty when not.
  std::vector<CollectiveRequest> Period() const;

  // A cached schedule has ended after `items`.  One that has not paid makes the
  // next one wait for more repetitions, so that a job which keeps leaving its
  // cached schedules soon has none.  Resets.
  void ScheduleHasEnded(int64_t items);

 private:
  std::deque<CollectiveRequest> last_;  // at most kMaxPeriod
  // The last `repeats_` requests each came first `period_` requests earlier.
  int64_t period_ = 0;
  int64_t repeats_ = 0;
  int64_t wanted_periods_ = 2;
};

// One rank's view of a cached schedule that holds.
//
// Invariants:
// - An item that all ranks have requested runs, on all of them.
// - An item that one rank has not requested when it leaves runs on none.
class CachedSchedule {
 public:
  // REQUIRES: `items` is not empty, and the same on every rank.
  CachedSchedule(std::vector<CollectiveRequest> items, int size, int rank);

  // Returns true if `request` is this rank's next item.
  bool IsNext(const CollectiveRequest& request) const;
  // Counts `request` as one item more that this rank has requested.
  // REQUIRES: IsNext(request); this rank has not left.
  void Submit(CollectiveRequest request);
  // This rank leaves.
  void Leave();
  // This rank's progress, for the others.
  const ProgressUpdate& progress() const { return progress_[rank_]; }
  // Takes in the progress of `peer`.  Internal if that goes back.
  absl::Status Receive(int peer, const ProgressUpdate& update);

  bool HasLeft(int rank) const { return progress_[rank].leaves; }
  bool SomeoneHasLeft() const;
  // The ranks that have not left.
  std::vector<int32_t> Remaining() const;

  // The next item that all ranks have requested: this rank's request for it.
  std::optional<CollectiveRequest> TakeNext();
  int64_t taken() const { return taken_; }
  // The requests of this rank that have not been taken, in order.
  const std::deque<CollectiveRequest>& pending() const { return pending_; }

  // Returns true if all have left, and all common items have been taken.  The
  // coordinator then gets the pending requests.
  bool over() const;

 private:
  // The number of items that all ranks have requested.
  int64_t Agreed() const;

  const std::vector<CollectiveRequest> items_;
  const int rank_;
  std::vector<ProgressUpdate> progress_;  // by rank
  std::deque<CollectiveRequest> pending_;
  int64_t taken_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_CACHED_SCHEDULE_H_
