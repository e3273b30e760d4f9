#include "tfring_ops/algorithms/ring/allreduce.h"

#include <algorithm>
#include <cstdint>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// On one rank there is nothing to reduce, but the result may be scaled.
absl::Status CopyAlone(const Kernels& kernels, const RingBuffers& buffers) {
  const RingPiece whole{buffers.input, buffers.output, buffers.count};
  for (const RingPiece& piece : buffers.pieces.empty()
                                    ? absl::MakeConstSpan(&whole, 1)
                                    : buffers.pieces) {
    kernels.Copy(piece.output, piece.input,
                 piece.count * SizeInBytes(buffers.dtype));
    if (buffers.scale != 1.0) {
      kernels.Scale(piece.output, piece.count, buffers.dtype, buffers.scale);
    }
  }
  return kernels.Synchronize();
}

}  // namespace

absl::Status RingAllreduce(const RingContext& context, RingBuffers buffers) {
  const int n = context.transport.size();
  if (n == 1) return CopyAlone(context.kernels, buffers);
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
  Blocks blocks(buffers.count, BlockCount(context, buffers.dtype));
  return RingAllreduceBlocks(context, buffers, blocks);
}

absl::Status RingAllreduceBlocks(const RingContext& context,
                                 const RingBuffers& buffers, Blocks& blocks) {
  const int n = context.transport.size();
  Primitives prims(context, buffers);
  // A block is cut into a chunk for each rank.  This is the chunk of the rank
  // `j` places before this one in the ring.
  const auto chunk = [&](int64_t block, int j) {
    const Range place = blocks.Place(blocks.at(block));
    const Range own =
        AlignedChunkOf(place.count, n, context.order.Before(j), buffers.dtype);
    return Range{place.offset + own.offset, own.count};
  };

  TFRING_RETURN_IF_ERROR(blocks.Begin(blocks.at(0)));
  TFRING_RETURN_IF_ERROR(prims.Send(chunk(0, 1)));
  for (int64_t block = 0; block < blocks.size(); ++block) {
    // Reduce-scatter.  Chunk r starts at the rank after r, travels round the
    // ring, and is complete at rank r.
    for (int j = 2; j < n; ++j) {
      TFRING_RETURN_IF_ERROR(prims.RecvReduceSend(chunk(block, j)));
    }
    TFRING_RETURN_IF_ERROR(prims.RecvReduceCopySend(chunk(block, 0)));

    // Allgather.  The complete chunks travel round the ring once more.
    for (int j = 1; j < n - 1; ++j) {
      TFRING_RETURN_IF_ERROR(prims.RecvCopySend(chunk(block, j)));
    }
    // See Note [Reduction by blocks] in blocks.h.  The block after the last one
    // is empty.
    TFRING_RETURN_IF_ERROR(blocks.Begin(blocks.at(block + 1)));
    TFRING_RETURN_IF_ERROR(prims.Send(chunk(block + 1, 1)));
    TFRING_RETURN_IF_ERROR(prims.Recv(chunk(block, n - 1)));
    TFRING_RETURN_IF_ERROR(blocks.End(blocks.at(block)));
  }
  return prims.Drain();
}

}  // namespace tfring
