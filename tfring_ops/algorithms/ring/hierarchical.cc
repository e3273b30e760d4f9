#include "tfring_ops/algorithms/ring/hierarchical.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/allgather.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/blocks.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/algorithms/ring/reduce_scatter.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/group.h"

namespace tfring {
namespace {

// Note [Blocks of a grid]
// The first axes work on a block while the last axis, between nodes, has the
// previous or the next block on the wire: see Note [Reduction by blocks].  At
// the ends of the buffer there is no other block to work on.  So a buffer is
// cut into at least kBlocks blocks, unless their chunks would be so short that
// the steps along the last axis cost more than the overlap gains.
constexpr int64_t kBlocks = 4;
constexpr int64_t kLeastChunkBytes = 128 << 10;

using Rings = absl::Span<const std::unique_ptr<RingContext>>;

int64_t GridBlockCount(Rings rings, int64_t count, DataType dtype) {
  const RingContext& last = *rings.back();
  int64_t ranks = 1;
  for (const auto& ring : rings) ranks *= ring->order.size();
  const int64_t longest = BlockCount(last, dtype) / last.order.size();
  const int64_t least = kLeastChunkBytes / SizeInBytes(dtype);
  return ranks * UpToBorder(std::clamp(count / ranks / kBlocks + 1,
                                       std::min(least, longest), longest),
                            dtype);
}

// The blocks of the ring along the last axis: the first axes reduce-scatter
// them before it, and gather them after it.
class GridBlocks final : public Blocks {
 public:
  GridBlocks(Rings rings, const RingBuffers& buffers)
      : Blocks(buffers.count,
               GridBlockCount(rings, buffers.count, buffers.dtype)),
        rings_(rings.first(rings.size() - 1)),
        buffers_(buffers),
        element_bytes_(SizeInBytes(buffers.dtype)) {
    buffers_.scale = 1.0;
  }

  // This rank's range of `block` on the last axis.
  Range Place(Range block) const override { return Shares(block).back(); }

  // Reduces `block` along the first axes: each rank then has its share in the
  // output.
  absl::Status Begin(Range block) override {
    RingBuffers buffers = buffers_;
    const std::vector<Range> shares = Shares(block);
    for (size_t axis = 0; axis < rings_.size(); ++axis) {
      const int64_t offset_bytes = shares[axis].offset * element_bytes_;
      RingBuffers share = buffers;
      share.input = static_cast<const std::byte*>(buffers.input) + offset_bytes;
      share.output = Output(shares[axis]);
      share.count = shares[axis].count;
      TFRING_RETURN_IF_ERROR(
          RingReduceScatter(*rings_[axis], share, Chunks(axis, share.count)));
      buffers.input = buffers.output;
    }
    return absl::OkStatus();
  }

  // Gathers all shares of `block` along the first axes.
  absl::Status End(Range block) override {
    const std::vector<Range> shares = Shares(block);
    for (size_t axis = rings_.size(); axis-- > 0;) {
      std::vector<int64_t> bytes_of_rank;
      for (const Range& chunk : Chunks(axis, shares[axis].count)) {
        bytes_of_rank.push_back(chunk.count * element_bytes_);
      }
      TFRING_RETURN_IF_ERROR(
          RingAllgather(*rings_[axis], Output(shares[axis + 1]),
                        Output(shares[axis]), bytes_of_rank));
    }
    return absl::OkStatus();
  }

 private:
  std::byte* Output(Range share) const {
    return static_cast<std::byte*>(buffers_.output) +
           share.offset * element_bytes_;
  }

  std::vector<Range> Chunks(size_t axis, int64_t count) const {
    const int n = rings_[axis]->transport.size();
    std::vector<Range> chunks;
    for (int rank = 0; rank < n; ++rank) {
      chunks.push_back(AlignedChunkOf(count, n, rank, buffers_.dtype));
    }
    return chunks;
  }

  // This rank's range of `block` on each axis, ending with that on the last
  // one.
  std::vector<Range> Shares(Range block) const {
    std::vector<Range> shares{block};
    for (const auto& ring : rings_) {
      const Range own = AlignedChunkOf(block.count, ring->transport.size(),
                                       ring->transport.rank(), buffers_.dtype);
      block = {block.offset + own.offset, own.count};
      shares.push_back(block);
    }
    return shares;
  }

  const Rings rings_;  // the rings of all axes except the last
  RingBuffers buffers_;
  const int64_t element_bytes_;
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

absl::Status HierarchicalAllreduce(const RingGrid& grid, RingBuffers buffers) {
  if (buffers.op == ReduceOp::kAverage) {
    buffers.op = ReduceOp::kSum;
    int n = 1;
    for (const auto& ring : grid.rings()) n *= ring->order.size();
    buffers.scale /= n;
  }
  const Rings rings = grid.rings();
  const RingContext& last = *rings.back();
  if (rings.size() == 1) return RingAllreduce(last, buffers);

  GridBlocks blocks(rings, buffers);
  buffers.input = buffers.output;
  return RingAllreduceBlocks(last, buffers, blocks);
}

}  // namespace tfring
