#include "tfring_ops/algorithms/ring/hierarchical.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/group.h"

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

// A primitive on a part.
struct Move {
  absl::Status (Primitives::*run)(Range);
  size_t axis;
  int before;  // The chunk is that of the rank this many places before.
  bool reads_input;
  int64_t turn;
};

// This rank's moves.
class GridMoves {
 public:
  // `rings` are at least two.
  GridMoves(std::vector<const RingContext*> rings, const RingBuffers& buffers)
      : rings_(std::move(rings)),
        dtype_(buffers.dtype),
        count_(buffers.count),
        part_count_(PartCount()),
        parts_((count_ + part_count_ - 1) / part_count_) {
    int64_t within = ranks(0) - 1, between = 0;
    for (size_t axis = 1; axis < rings_.size(); ++axis) {
      between += ranks(axis) - 1;
    }
    // The moves between nodes are twice `between`, those of the reduce-scatter
    // within a node are `within`.
    stagger_ = 2 * within * between;
    turns_within_ = 6 * between;
    turns_between_ = within * GridPartsBetween(parts_);
    AddMoves(0);
    // A part's primitives are free for another part after its last turn.
    const int64_t at_a_time = std::min(parts_, turn_ / stagger_ + 1);
    for (int64_t i = 0; i < at_a_time; ++i) AddPrimitives(buffers);
  }

  absl::Status Run() const {
    struct Turn {
      int64_t turn, part;
      const Move* move;
    };
    std::vector<Turn> turns;
    for (int64_t part = 0; part < parts_; ++part) {
      for (const Move& move : moves_) {
        turns.push_back({part * stagger_ + move.turn, part, &move});
      }
    }
    std::stable_sort(
        turns.begin(), turns.end(),
        [](const Turn& a, const Turn& b) { return a.turn < b.turn; });
    for (const Turn& turn : turns) {
      TFRING_RETURN_IF_ERROR(Run(turn.part, *turn.move));
    }
    for (const auto& of_part : primitives_) {
      for (const auto& primitives : of_part) {
        TFRING_RETURN_IF_ERROR(primitives->Drain());
      }
    }
    return absl::OkStatus();
  }

 private:
  int ranks(size_t axis) const { return rings_[axis]->order.size(); }

  int64_t PartCount() const {
    std::vector<int> shape;
    int64_t all = 1;
    for (size_t axis = 0; axis < rings_.size(); ++axis) {
      shape.push_back(ranks(axis));
      all *= ranks(axis);
    }
    const int64_t element_bytes = SizeInBytes(dtype_);
    const int64_t bytes =
        GridPartBytes(shape, count_ * element_bytes, rings_[0]->segment_bytes);
    return UpToBorder(bytes / element_bytes / all + 1, dtype_) * all;
  }

  // Adds the primitives of a part: one for each axis, then one that reads the
  // input.
  void AddPrimitives(const RingBuffers& buffers) {
    auto& of_part = primitives_.emplace_back();
    RingBuffers of_ring = buffers;
    of_ring.input = buffers.output;
    of_ring.scale = 1.0;
    for (size_t axis = 0; axis < rings_.size(); ++axis) {
      if (axis + 1 == rings_.size()) of_ring.scale = buffers.scale;
      of_part.push_back(std::make_unique<Primitives>(*rings_[axis], of_ring));
    }
    of_ring.input = buffers.input;
    of_ring.scale = 1.0;
    of_part.push_back(std::make_unique<Primitives>(*rings_[0], of_ring));
  }

  void AddMove(absl::Status (Primitives::*run)(Range), size_t axis, int before,
               bool reads_input = false) {
    moves_.push_back({run, axis, before, reads_input, turn_});
    const bool sends = run != &Primitives::RecvReduceCopy &&  //
                       run != &Primitives::Recv;
    if (sends) turn_ += axis == 0 ? turns_within_ : turns_between_;
  }

  // Adds the moves of a part: a reduce-scatter along `axis`, an allreduce along
  // the axes after it, and an allgather.  See RingAllreduce.
  void AddMoves(size_t axis) {
    const bool is_first = axis == 0, is_last = axis + 1 == rings_.size();
    const int n = ranks(axis);
    AddMove(&Primitives::Send, axis, 1, is_first);
    for (int j = 2; j < n; ++j) {
      AddMove(&Primitives::RecvReduceSend, axis, j, is_first);
    }
    if (is_last) {
      AddMove(&Primitives::RecvReduceCopySend, axis, 0);
    } else {
      AddMove(&Primitives::RecvReduceCopy, axis, 0, is_first);
      AddMoves(axis + 1);
      AddMove(&Primitives::Send, axis, 0);
    }
    for (int j = 1; j < n - 1; ++j) {
      AddMove(&Primitives::RecvCopySend, axis, j);
    }
    AddMove(&Primitives::Recv, axis, n - 1);
  }

  absl::Status Run(int64_t part, const Move& move) const {
    const int64_t begin = part * part_count_;
    Range range{begin, std::min(part_count_, count_ - begin)};
    for (size_t axis = 0; axis < move.axis; ++axis) {
      range = ChunkOf(range, axis, 0);
    }
    const auto& of_part = primitives_[part % primitives_.size()];
    Primitives& primitives =
        move.reads_input ? *of_part.back() : *of_part[move.axis];
    return (primitives.*move.run)(ChunkOf(range, move.axis, move.before));
  }

  // Returns the chunk of the rank `before` places before this one.
  Range ChunkOf(Range range, size_t axis, int before) const {
    const Range chunk = AlignedChunkOf(
        range.count, ranks(axis), rings_[axis]->order.Before(before), dtype_);
    return {range.offset + chunk.offset, chunk.count};
  }

  const std::vector<const RingContext*> rings_;
  const DataType dtype_;
  const int64_t count_, part_count_, parts_;
  std::vector<Move> moves_;  // Each part makes all of them.
  // Each part is `stagger_` turns behind the part before it.  A move that sends
  // takes `turns_within_` or `turns_between_` turns.
  int64_t stagger_, turns_within_, turns_between_;
  int64_t turn_ = 0;  // The next move that is added has this turn.
  // The primitives of each part that is on its way: part i takes the set i
  // modulo the number of sets.
  std::vector<std::vector<std::unique_ptr<Primitives>>> primitives_;
};

}  // namespace

RingGrid::RingGrid(const RingContext& whole, const std::vector<int>& shape) {
  const RingOrder& order = whole.order;
  int stride = 1;
  for (const int length : shape) {
    const int first = order.place - order.place / stride % length * stride;
    std::vector<int> members;
    for (int i = 0; i < length; ++i) {
      members.push_back(order.ranks[first + i * stride]);
    }
    groups_.push_back(MakeGroupTransport(whole.transport, std::move(members)));
    rings_.push_back(std::unique_ptr<RingContext>(new RingContext{
        *groups_.back(), whole.kernels, whole.segment_bytes, whole.scratch}));
    stride *= length;
  }
}

int64_t GridPartBytes(absl::Span<const int> shape, int64_t bytes,
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
  parts =
      std::max(std::min(parts, kMostParts), (chunk + longest - 1) / longest);
  return bytes / parts + 1;
}

int64_t GridPartsBetween(int64_t parts) {
  return std::clamp(parts / 2, kLeastPartsBetween, kMostParts / 2);
}

absl::Status HierarchicalAllreduce(const RingGrid& grid, RingBuffers buffers) {
  std::vector<const RingContext*> rings;
  int n = 1;
  for (const auto& ring : grid.rings()) {
    n *= ring->order.size();
    if (ring->order.size() > 1) rings.push_back(ring.get());
  }
  if (buffers.op == ReduceOp::kAverage) {
    buffers.op = ReduceOp::kSum;
    buffers.scale /= n;
  }
  if (rings.size() < 2) return RingAllreduce(*grid.rings().back(), buffers);
  if (buffers.count == 0) return absl::OkStatus();

  return GridMoves(std::move(rings), buffers).Run();
}

}  // namespace tfring
