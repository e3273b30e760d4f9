// A ring allreduce of a long buffer, block by block.
#ifndef TFRING_OPS_ALGORITHMS_RING_BLOCKS_H_
#define TFRING_OPS_ALGORITHMS_RING_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// Note [Reduction by blocks]
// A long buffer is reduced block by block, so that a block stays in cache: the
// last primitive on a block overwrites what the first one has read.  The first
// primitive on the next block runs before the last one on this block, so that
// the wire is never idle.
//
// load(block), which prepares a block before its first primitive, and
// store(block), which finishes it after its last one, run while the other block
// is on the wire.

// The length of a block: a fixed number of segments in each rank's chunk, up to
// the next border.
inline int64_t BlockCount(const RingContext& context, DataType dtype) {
  constexpr int64_t kSegments = 4;
  const int64_t segment_count =
      std::max<int64_t>(1, context.segment_bytes / SizeInBytes(dtype));
  return UpToBorder(kSegments * segment_count, dtype) *
         context.transport.size();
}

// Reduces `count` elements in blocks of `block_count`; part(block) is the range
// of a block that `prims` reduces, in elements of `prims`, which are of
// `dtype`. REQUIRES: at least two ranks.
template <typename Load, typename Store, typename Part>
absl::Status AllreduceByBlocks(const RingContext& context, Primitives& prims,
                               int64_t count, DataType dtype,
                               int64_t block_count, const Load& load,
                               const Store& store, const Part& part) {
  const int n = context.transport.size();
  const auto range = [&](int64_t block) {
    const int64_t begin = std::min(block * block_count, count);
    return Range{begin, std::min(block_count, count - begin)};
  };
  // The chunk of a block's part that was this rank's `j` steps ago.
  const auto chunk = [&](int64_t block, int j) {
    const Range whole = part(range(block));
    const Range own =
        AlignedChunkOf(whole.count, n, context.order.Before(j), dtype);
    return Range{whole.offset + own.offset, own.count};
  };

  TFRING_RETURN_IF_ERROR(load(range(0)));
  TFRING_RETURN_IF_ERROR(prims.Send(chunk(0, 1)));
  for (int64_t block = 0; block * block_count < count; ++block) {
    // Reduce-scatter.  Chunk r walks once round the ring and is whole at rank
    // r.
    for (int j = 2; j < n; ++j) {
      TFRING_RETURN_IF_ERROR(prims.RecvReduceSend(chunk(block, j)));
    }
    TFRING_RETURN_IF_ERROR(prims.RecvReduceCopySend(chunk(block, 0)));

    // Allgather.  The whole chunks walk round once more.
    for (int j = 1; j < n - 1; ++j) {
      TFRING_RETURN_IF_ERROR(prims.RecvCopySend(chunk(block, j)));
    }
    // See Note [Reduction by blocks].
    TFRING_RETURN_IF_ERROR(load(range(block + 1)));
    TFRING_RETURN_IF_ERROR(prims.Send(chunk(block + 1, 1)));
    TFRING_RETURN_IF_ERROR(prims.Recv(chunk(block, n - 1)));
    TFRING_RETURN_IF_ERROR(store(range(block)));
  }
  return prims.Drain();
}

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_BLOCKS_H_
