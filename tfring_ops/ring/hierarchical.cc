#include "tfring_ops/ring/hierarchical.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/ring/allgather.h"
#include "tfring_ops/ring/allreduce.h"
#include "tfring_ops/ring/chunks.h"
#include "tfring_ops/ring/reduce_scatter.h"
#include "tfring_ops/transport/group.h"

namespace tfring {
namespace {

using Rings = absl::Span<const std::unique_ptr<RingContext>>;

absl::Status AllreduceAlong(Rings rings, const RingBuffers& buffers) {
  const RingContext& ring = *rings.front();
  if (rings.size() == 1) return RingAllreduce(ring, buffers);

  const int64_t element_bytes = SizeInBytes(buffers.dtype);
  std::vector<Range> chunks;
  std::vector<int64_t> bytes_of_rank;
  for (int rank = 0; rank < ring.transport.size(); ++rank) {
    chunks.push_back(ChunkOf(buffers.count, ring.transport.size(), rank));
    bytes_of_rank.push_back(chunks.back().count * element_bytes);
  }
  RingBuffers partial = buffers;
  partial.scale = 1.0;
  TFRING_RETURN_IF_ERROR(RingReduceScatter(ring, partial, chunks));

  const Range own = chunks[ring.transport.rank()];
  RingBuffers share = buffers;
  share.input = share.output =
      static_cast<std::byte*>(buffers.output) + own.offset * element_bytes;
  share.count = own.count;
  TFRING_RETURN_IF_ERROR(AllreduceAlong(rings.subspan(1), share));

  return RingAllgather(ring, share.output, buffers.output, bytes_of_rank);
}

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
  return AllreduceAlong(grid.rings(), buffers);
}

}  // namespace tfring
