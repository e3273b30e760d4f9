// The cached schedule: a repeated step is agreed without the coordinator.
//
// A training loop asks for the same buckets in the same order, step after step.
// When the coordinator has seen a period of its response lists repeat, it makes
// that period the cached schedule, and says so in the response list.  From then
// on ranks tell each other in progress updates how many items of the schedule,
// going round and round, they have submitted.  The states of a rank, for which
// the negotiator (negotiator.h) has the messages and the clock:
//
//   state     | what the rank does             | it ends when
//   ----------+--------------------------------+-----------------------------
//   asking    | sends requests to the          | a response list has a
//             | coordinator; runs response     | schedule (BeginSchedule)
//             | lists                          |
//   following | submits its items in order and | the rank leaves (Leave): it
//             | sends updates; runs the items  | requests anything else or a
//             | that all have submitted        | shutdown, has waited too
//             |                                | long (CheckPatience), or
//             |                                | hears of one that has left
//   left      | submits nothing more; sends    | all have left, and it has run
//             | updates; runs the items that   | all common items (over); its
//             | all have submitted             | pending ones are requests
//             |                                | again (EndSchedule)
//
// No rank decides: when all have left, all know the least count at which one
// did, and every rank runs the items up to that.  A hung process never leaves;
// its missing heartbeats are reported.
//
// The counting depends on the number of ranks (progress_tree.h).  A few are
// peers: an update is one message one way, where a response list takes a way to
// the coordinator and a way back.  More are a tree:
//
//   place     | TakeReport goes to | TakeTotal goes to | Agreed is
//   ----------+--------------------+-------------------+---------------------
//   peer      | all others         | nobody            | its report, and what
//             |                    |                   | it has heard of all
//   leaf      | its parent         | nobody            | its parent's total
//   inner     | its parent         | its children      | its parent's total
//   root      | nobody             | its children      | its own total
//
// Some kinds of collectives have sizes, which differ from rank to rank and may
// from step to step: see Collective::Sizes.  An update has the sizes that have
// changed since the ranks last ran the item.  In a tree all of them travel up,
// and the coordinator sends them down again.
//
// Items that have become ready together may run as one bucket, if that is cut
// alike on all ranks: there is a border behind each item up to which some rank
// has reported, or in a tree the coordinator has told.  A rank knows the
// borders up to an item before it knows that all ranks have requested the item.
//
// Pure bookkeeping: no messages, no threads, no clock.  Not thread-safe.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_CACHED_SCHEDULE_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_CACHED_SCHEDULE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/negotiation/progress_tree.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Returns true if the coordinator would accept the two as the same request, of
// two ranks or of two steps.  An equivalence: if the requests of two ranks
// match an item of a cached schedule, they match each other.
bool SameRequest(const CollectiveRequest& a, const CollectiveRequest& b);

// Finds the period of the coordinator's response lists.
class PeriodFinder {
 public:
  // The longest period that becomes a cached schedule.
  static constexpr int kMaxPeriod = 4096;

  // Adds a request that all ranks are to run, as a bucket of its own.
  void Add(CollectiveRequest request);
  // Forgets the period, because something else has happened.
  void Reset();

  // Returns the last period, if it has repeated often enough to be a cached
  // schedule; the next expected request is its first.  Otherwise empty.
  std::vector<CollectiveRequest> Period() const;

  // Notes that a cached schedule has ended after `items`, and resets.  After a
  // schedule that was too short to pay, the next one needs more repetitions, so
  // that a job which keeps leaving its cached schedules soon has none.
  void ScheduleHasEnded(int64_t items);

 private:
  std::deque<CollectiveRequest> last_;  // at most kMaxPeriod
  // The number of each name's last request, of `added_`.
  std::unordered_map<std::string, int64_t> newest_;
  int64_t added_ = 0;
  // Each of the last `repeats_` requests equals the one `period_` requests
  // earlier.
  int64_t period_ = 0;
  int64_t repeats_ = 0;
  int64_t wanted_periods_ = 2;
};

// One rank's view of the current cached schedule.
//
// Invariants:
// - An item that all ranks have requested runs, on all of them.
// - An item that one rank has not requested when it leaves runs on none.
// - TakeReady returns the same on every rank, call for call, except for the
//   requests, which are the rank's own.
class CachedSchedule {
 public:
  struct Item {
    CollectiveRequest request;
    // The sizes of each rank; empty if requests of this kind have none.
    std::vector<std::vector<int64_t>> sizes;
  };

  // Makes the view of `rank` among `size` ranks.
  // REQUIRES: `items` is not empty, and the same on every rank.
  CachedSchedule(std::vector<CollectiveRequest> items, int rank, int size,
                 ProgressNeighbors neighbors);

  // Returns true if `request` is this rank's next item.
  bool IsNext(const CollectiveRequest& request) const;
  // Counts `request` as the next item that this rank has requested.
  // REQUIRES: IsNext(request); this rank has not left.
  void Submit(CollectiveRequest request);
  // This rank leaves.
  void Leave() { own_.some_left = own_.all_left = true; }
  bool has_left() const { return own_.all_left; }
  // The number of items that this rank has requested.
  int64_t submitted() const { return own_.count; }

  // Returns the update on this rank and the ranks below it, which its peers and
  // its parent must get before anything else happens; none if there is no news.
  std::optional<ProgressUpdate> TakeReport();
  // Returns the update on all ranks, as far as it is known here, for its
  // children.
  std::optional<ProgressUpdate> TakeTotal();
  // The progress in the last report.
  const Progress& reported() const { return reported_; }
  const Progress& told() const { return told_; }

  // Receives an update of a neighbor.  Internal if it takes back an earlier
  // one.
  absl::Status Receive(int neighbor, const ProgressUpdate& update);
  // Returns true if `neighbor` has sent its last update.
  bool IsLast(int neighbor) const { return heard_[neighbor].all_left; }
  // Returns true if this rank knows of one that has left.
  bool SomeHaveLeft() const;

  // Returns the next items that all ranks have requested, up to a border; empty
  // if there are none.
  std::vector<Item> TakeReady();
  int64_t taken() const { return taken_; }
  // The requests of this rank that have not been taken, in order.
  const std::deque<CollectiveRequest>& pending() const { return pending_; }

  // Returns true if all have left, and all common items have been taken.  The
  // coordinator then gets the pending requests.
  bool over() const;

 private:
  using SizesByRank = std::vector<std::vector<int64_t>>;

  bool is_root() const { return neighbors_.parent < 0; }
  // The progress of this rank and the ranks below it.
  Progress Below() const;
  // The progress of all ranks, as far as this one may tell its children.
  Progress Total() const;
  // The progress of all ranks, as far as this one may act by it.
  Progress Agreed() const;
  // Notes sizes that are valid for all ranks.
  void Know(const RequestSizes& sizes);
  // Adds a border after the first `count` items, unless they have been taken.
  void AddBorder(int64_t count);

  const std::vector<CollectiveRequest> items_;
  const int rank_, size_;
  const ProgressNeighbors neighbors_;
  Progress own_, reported_, told_;
  std::vector<Progress> heard_;  // the last of each neighbor, by rank
  std::deque<CollectiveRequest> pending_;
  int64_t taken_ = 0;
  std::set<int64_t> borders_;  // beyond taken_
  // For each item of the period: this rank's last reported sizes, and all
  // ranks' sizes when the item ran last.
  std::vector<std::vector<int64_t>> own_sizes_;
  std::vector<SizesByRank> sizes_;
  std::map<int64_t, std::vector<RequestSizes>> changes_;  // by item to be taken
  // The sizes for the next report, and for the next total.
  std::vector<RequestSizes> unreported_;
  std::vector<int64_t> untold_borders_;
  std::vector<RequestSizes> untold_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_CACHED_SCHEDULE_H_
