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

// Note [Blocks of a grid]
// The first axis is within a node, and the others are between nodes.  To keep
// both busy, a buffer is cut into blocks.  While the other axes reduce a block,
// the first one gathers the previous block and scatters the next one.  Both are
// lists of primitives that take turns: the next primitive comes from the list
// that has moved the smaller part of its elements.  A primitive that only sends
// follows the one before it at once, so that data is on the wire during the
// other list's turn.  On the first axis a primitive moves a part of a chunk, so
// that the turns are short.
//
// All ranks have the same order of primitives, and a primitive waits only for
// those before it.  So no rank waits forever.
//
// At the ends of the buffer one side is idle, and each block pays the latencies
// of all its primitives.  So there are kBlocks blocks, or fewer if the chunks
// between nodes would be shorter than kLeastChunkBytes.
constexpr int64_t kBlocks = 4;
constexpr int64_t kLeastChunkBytes = 128 << 10;
constexpr int64_t kMostSegments = 4;  // of such a chunk, per rank behind it
constexpr int64_t kLeastPartBytes = 64 << 10;
constexpr int64_t kMostParts = 4;

// A primitive of a ring.
struct Move {
  Primitives* primitives;
  absl::Status (Primitives::*run)(Range);
  Range chunk;
  int64_t weight;  // about the length of the chunk; the same on all ranks
};

using Moves = std::vector<Move>;

// Runs the moves of two lists, each in its order; see Note [Blocks of a grid].
absl::Status RunInTurns(const Moves& some, const Moves& others) {
  const auto total = [](const Moves& moves) {
    int64_t weight = 0;
    for (const Move& move : moves) weight += move.weight;
    return static_cast<double>(weight);
  };
  const double all_of_some = total(some), all_of_others = total(others);
  double some_done = 0, others_done = 0;
  for (auto i = some.begin(), j = others.begin();
       i != some.end() || j != others.end();) {
    const bool is_some =
        j == others.end() || (i != some.end() && some_done * all_of_others <=
                                                     others_done * all_of_some);
    auto& next = is_some ? i : j;
    const auto end = is_some ? some.end() : others.end();
    do {
      const Move& move = *next++;
      (is_some ? some_done : others_done) += static_cast<double>(move.weight);
      TFRING_RETURN_IF_ERROR((move.primitives->*move.run)(move.chunk));
    } while (next != end && next->run == &Primitives::Send);
  }
  return absl::OkStatus();
}

// This rank's moves, block by block.
class GridMoves {
 public:
  // `rings` are at least two.
  GridMoves(std::vector<const RingContext*> rings, const RingBuffers& buffers)
      : rings_(std::move(rings)),
        dtype_(buffers.dtype),
        count_(buffers.count),
        block_count_(BlockCount()) {
    RingBuffers of_ring = buffers;
    of_ring.scale = 1.0;
    from_input_ = MakeAxis(0, of_ring);
    of_ring.input = buffers.output;
    for (size_t axis = 0; axis < rings_.size(); ++axis) {
      if (axis + 1 == rings_.size()) of_ring.scale = buffers.scale;
      in_place_.push_back(MakeAxis(axis, of_ring));
    }
  }

  int64_t blocks() const { return (count_ + block_count_ - 1) / block_count_; }

  // Adds the moves on the first axis that leave each rank its share of a block.
  void Scatter(int64_t block, Moves& moves) const {
    AddReduceScatter(from_input_, Whole(block), moves);
  }

  // Adds the moves on the other axes that sum up each rank's share.
  void Allreduce(int64_t block, Moves& moves) const {
    AddAllreduce(OwnPart(Whole(block)), moves);
  }

  // Adds the moves on the first axis that give each rank the sum of the block.
  void Gather(int64_t block, Moves& moves) const {
    AddAllgather(Whole(block), /*has_sent=*/false, moves);
  }

  absl::Status Drain() const {
    absl::Status status = Drain(from_input_);
    for (const Axis& axis : in_place_) {
      if (status.ok()) status = Drain(axis);
    }
    return status;
  }

 private:
  // The primitives of an axis.  The first axis has two, which take turns,
  // because its chunks have parts.
  using Axis = std::vector<std::unique_ptr<Primitives>>;

  Axis MakeAxis(size_t axis, const RingBuffers& buffers) const {
    Axis primitives;
    for (int i = 0; i < (axis == 0 ? 2 : 1); ++i) {
      primitives.push_back(
          std::make_unique<Primitives>(*rings_[axis], buffers));
    }
    return primitives;
  }

  static absl::Status Drain(const Axis& axis) {
    for (const auto& primitives : axis) {
      TFRING_RETURN_IF_ERROR(primitives->Drain());
    }
    return absl::OkStatus();
  }

  // The elements that the ranks of an axis divide: a block, or a rank's part of
  // it.
  struct Shared {
    size_t axis;
    Range range;
    int64_t length;  // about that of `range`; the same on all ranks
  };

  int ranks(size_t axis) const { return rings_[axis]->order.size(); }

  int64_t BlockCount() const {
    std::vector<int> shape;
    int64_t all = 1;
    for (size_t axis = 0; axis < rings_.size(); ++axis) {
      shape.push_back(ranks(axis));
      all *= ranks(axis);
    }
    const int64_t element_bytes = SizeInBytes(dtype_);
    const int64_t bytes =
        GridBlockBytes(shape, count_ * element_bytes, rings_[0]->segment_bytes);
    return UpToBorder(bytes / element_bytes / all + 1, dtype_) * all;
  }

  Shared Whole(int64_t block) const {
    const int64_t begin = std::min(block * block_count_, count_);
    const int64_t count = std::min(block_count_, count_ - begin);
    return {0, {begin, count}, count};
  }

  // Returns the elements that the next axis divides.
  Shared OwnPart(const Shared& shared) const {
    return {shared.axis + 1,
            ChunkOf(shared, rings_[shared.axis]->transport.rank()),
            shared.length / ranks(shared.axis)};
  }

  Range ChunkOf(const Shared& shared, int rank) const {
    const Range chunk =
        AlignedChunkOf(shared.range.count, ranks(shared.axis), rank, dtype_);
    return {shared.range.offset + chunk.offset, chunk.count};
  }

  // Calls add_part with a function that adds a primitive on the chunk of the
  // rank `j` places before this one, or on a part of it.  The moves of two
  // parts take turns, so that one is on the wire while the other is reduced.
  template <typename AddPart>
  void ForParts(const Axis& axis, const Shared& shared, Moves& moves,
                const AddPart& add_part) const {
    const int64_t length = shared.length / ranks(shared.axis);
    const int parts =
        shared.axis > 0 ? 1 : GridParts(length * SizeInBytes(dtype_));
    Moves of_part, of_pair;
    for (int part = 0; part < parts; ++part) {
      of_part.clear();
      add_part([&](absl::Status (Primitives::*run)(Range), int j) {
        const Range chunk =
            ChunkOf(shared, rings_[shared.axis]->order.Before(j));
        const Range own = AlignedChunkOf(chunk.count, parts, part, dtype_);
        of_part.push_back({axis[part % 2].get(),
                           run,
                           {chunk.offset + own.offset, own.count},
                           length / parts});
      });
      if (part % 2 == 0) {
        of_pair = of_part;
        if (part + 1 < parts) continue;
        of_part.clear();
      }
      for (size_t i = 0; i < of_pair.size(); ++i) {
        moves.push_back(of_pair[i]);
        if (i < of_part.size()) moves.push_back(of_part[i]);
      }
    }
  }

  // See RingReduceScatter.
  void AddReduceScatter(const Axis& axis, const Shared& shared,
                        Moves& moves) const {
    ForParts(axis, shared, moves, [&](const auto& add) {
      add(&Primitives::Send, 1);
      for (int j = 2; j < ranks(shared.axis); ++j) {
        add(&Primitives::RecvReduceSend, j);
      }
      add(&Primitives::RecvReduceCopy, 0);
    });
  }

  // See RingAllgather.  `has_sent` tells that this rank's chunk is on its way.
  void AddAllgather(const Shared& shared, bool has_sent, Moves& moves) const {
    ForParts(in_place_[shared.axis], shared, moves, [&](const auto& add) {
      if (!has_sent) add(&Primitives::Send, 0);
      for (int j = 1; j < ranks(shared.axis) - 1; ++j) {
        add(&Primitives::RecvCopySend, j);
      }
      add(&Primitives::Recv, ranks(shared.axis) - 1);
    });
  }

  void AddAllreduce(const Shared& shared, Moves& moves) const {
    AddReduceScatter(in_place_[shared.axis], shared, moves);
    const bool is_last = shared.axis + 1 == rings_.size();
    if (is_last) {
      moves.back().run = &Primitives::RecvReduceCopySend;
    } else {
      AddAllreduce(OwnPart(shared), moves);
    }
    AddAllgather(shared, /*has_sent=*/is_last, moves);
  }

  const std::vector<const RingContext*> rings_;
  const DataType dtype_;
  const int64_t count_, block_count_;
  Axis from_input_;  // the first axis
  std::vector<Axis> in_place_;
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

int64_t GridBlockBytes(absl::Span<const int> shape, int64_t bytes,
                       int64_t segment_bytes) {
  // A chunk of the second axis is the longest between nodes.  The blocks of the
  // last axis stay in cache, as in Note [Reduction by blocks].
  const int64_t chunks = static_cast<int64_t>(shape[0]) * shape[1];
  int64_t longest = kMostSegments * segment_bytes;
  for (const int length : shape.subspan(2)) longest *= length;
  const int64_t least = std::min(kLeastChunkBytes, longest);
  const int64_t in_all = bytes / chunks + 1;
  const int64_t blocks =
      std::max(std::clamp<int64_t>((in_all + least / 2) / least, 1, kBlocks),
               (in_all + longest - 1) / longest);
  return chunks * (in_all / blocks + 1);
}

int GridParts(int64_t chunk_bytes) {
  return static_cast<int>(
      std::clamp<int64_t>(chunk_bytes / kLeastPartBytes, 1, kMostParts));
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

  const GridMoves grid_moves(std::move(rings), buffers);
  Moves begin;
  grid_moves.Scatter(0, begin);
  TFRING_RETURN_IF_ERROR(RunInTurns(begin, {}));
  for (int64_t block = 0; block < grid_moves.blocks(); ++block) {
    Moves within, between;
    if (block > 0) grid_moves.Gather(block - 1, within);
    // The block after the last one is empty.
    grid_moves.Scatter(block + 1, within);
    grid_moves.Allreduce(block, between);
    TFRING_RETURN_IF_ERROR(RunInTurns(between, within));
  }
  Moves end;
  grid_moves.Gather(grid_moves.blocks() - 1, end);
  TFRING_RETURN_IF_ERROR(RunInTurns(end, {}));
  return grid_moves.Drain();
}

}  // namespace tfring
