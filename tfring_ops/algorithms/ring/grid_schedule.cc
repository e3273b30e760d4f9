#include "tfring_ops/algorithms/ring/grid_schedule.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfring {
namespace {

// Note [Parts of a grid]
// The first axis is within a node, and the others are between nodes.  A buffer
// is cut into parts, which all make the same moves, each part a stagger behind
// the part before it.  So while one part is on an axis, other parts are on the
// other axes: both kinds of links are busy, and the latency or the reduction of
// one part passes while another one is on the wire.
//
// Moves run in the order of their turns.  A part's turns of the reduce-scatter
// along the first axis last three staggers, so that one part is on the wire
// while another one is reduced and the latency of a third one passes.  Its
// turns between nodes last as many staggers as parts should be there at a time,
// which is half of all parts, and at least four: with fewer, latencies would
// show; with more, the first part would be back late.
//
// All ranks run their moves in the same order, and a move waits only for moves
// before it: for the message of its part's previous move on another rank, or
// until the next rank has received what an earlier move has sent.  So no rank
// waits forever.  Messages are received in the order in which they were sent,
// because all moves along an axis take equally many turns: the turn to receive
// a message is always that long after the turn to send it.
constexpr int64_t kMostParts = 32;
constexpr int64_t kLeastPartsBetween = 4;
constexpr int64_t kLeastChunkBytes = 128 << 10;  // between nodes

// The moves of one part, with the times of their turns.
class MovesOfPart {
 public:
  MovesOfPart(absl::Span<const int> shape, int64_t parts) : shape_(shape) {
    int64_t between = 0;
    for (const int length : shape.subspan(1)) between += length - 1;
    const int64_t within = shape[0] - 1;
    // The moves between nodes are twice `between`, those of the reduce-scatter
    // within a node are `within`.
    stagger_ = 2 * within * between;
    turns_within_ = 6 * between;
    turns_between_ =
        within * std::clamp(parts / 2, kLeastPartsBetween, kMostParts / 2);
    Add(0);
  }

  const std::vector<GridSchedule::Turn>& turns() const { return turns_; }
  int64_t stagger() const { return stagger_; }
  int64_t end() const { return time_; }

 private:
  void Add(absl::Status (Primitives::*run)(Range), size_t axis, int before,
           bool reads_input = false) {
    const GridMove move{run, axis, before, reads_input};
    turns_.push_back({time_, /*part=*/0, move});
    if (move.sends()) time_ += axis == 0 ? turns_within_ : turns_between_;
  }

  // Adds a reduce-scatter along `axis`, an allreduce along the axes after it,
  // and an allgather.  See RingAllreduce.
  void Add(size_t axis) {
    const bool is_first = axis == 0, is_last = axis + 1 == shape_.size();
    const int n = shape_[axis];
    Add(&Primitives::Send, axis, 1, is_first);
    for (int j = 2; j < n; ++j) {
      Add(&Primitives::RecvReduceSend, axis, j, is_first);
    }
    if (is_last) {
      Add(&Primitives::RecvReduceCopySend, axis, 0);
    } else {
      Add(&Primitives::RecvReduceCopy, axis, 0, is_first);
      Add(axis + 1);
      Add(&Primitives::Send, axis, 0);
    }
    for (int j = 1; j < n - 1; ++j) Add(&Primitives::RecvCopySend, axis, j);
    Add(&Primitives::Recv, axis, n - 1);
  }

  const absl::Span<const int> shape_;
  // Each part is `stagger_` turns behind the part before it.  A move that sends
  // takes `turns_within_` or `turns_between_` turns.
  int64_t stagger_, turns_within_, turns_between_;
  int64_t time_ = 0;  // of the next move
  std::vector<GridSchedule::Turn> turns_;
};

}  // namespace

int64_t GridParts(absl::Span<const int> shape, int64_t bytes,
                  int64_t segment_bytes) {
  // A chunk of the second axis is the longest between nodes.
  const int64_t chunk = bytes / shape[0] / shape[1] + 1;
  // The chunks of the last axis are a segment, so that the parts on their way
  // stay in cache, as in Note [Reduction by blocks].
  int64_t longest = segment_bytes;
  for (const int length : shape.subspan(2)) longest *= length;
  // The more steps there are between nodes, the more latencies are hidden by
  // many parts, which cost a message each.
  int64_t steps = 0;
  for (const int length : shape.subspan(1)) steps += length - 1;
  const int64_t least = kLeastChunkBytes / std::min<int64_t>(steps, 4);
  int64_t parts = chunk / least;
  if (parts < kLeastPartsBetween) {
    // Two parts hide each other's reductions within the node, if they are long.
    const bool are_long =
        bytes / shape[0] >= segment_bytes / 4 && chunk > least / 2;
    parts = are_long ? 2 : 1;
  }
  return std::max(std::min(parts, kMostParts), (chunk + longest - 1) / longest);
}

GridSchedule MakeGridSchedule(absl::Span<const int> shape, int64_t parts) {
  const MovesOfPart one(shape, parts);
  GridSchedule schedule;
  for (int64_t part = 0; part < parts; ++part) {
    for (GridSchedule::Turn turn : one.turns()) {
      turn.time += part * one.stagger();
      turn.part = part;
      schedule.turns.push_back(turn);
    }
  }
  std::stable_sort(schedule.turns.begin(), schedule.turns.end(),
                   [](const GridSchedule::Turn& a,
                      const GridSchedule::Turn& b) { return a.time < b.time; });
  // The primitives of a part are free for another part after its last turn.
  schedule.parts_at_a_time = std::min(parts, one.end() / one.stagger() + 1);
  return schedule;
}

}  // namespace tfring
