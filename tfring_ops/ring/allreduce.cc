#include "tfring_ops/ring/allreduce.h"

#include <algorithm>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/ring/chunks.h"

namespace tfring {
namespace {

// Segments of a chunk in each block.
constexpr int64_t kBlockSegments = 4;

// Note [Blocks]
// A long buffer is reduced block by block, so that a block stays in cache: what
// a rank reads in the block's first move it overwrites in the last one.  The
// first move of the next block goes ahead of the last one of this block, so
// that the wire is never idle.
int64_t BlockCount(const RingContext& context, DataType dtype) {
  const int64_t segment_count =
      std::max<int64_t>(1, context.segment_bytes / SizeInBytes(dtype));
  return kBlockSegments * segment_count * context.transport.size();
}

}  // namespace

absl::Status RingAllreduce(const RingContext& context, RingBuffers buffers) {
  const int n = context.transport.size();
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
  if (n == 1) {
    const Kernels& kernels = context.kernels;
    kernels.Copy(buffers.output, buffers.input,
                 buffers.count * SizeInBytes(buffers.dtype));
    if (buffers.scale != 1.0) {
      kernels.Scale(buffers.output, buffers.count, buffers.dtype,
                    buffers.scale);
    }
    return kernels.Synchronize();
  }

  Primitives prims(context, buffers);
  const int64_t block_count = BlockCount(context, buffers.dtype);
  // Of a block of the buffer, the chunk that was this rank's `j` steps ago.
  const auto chunk = [&](int64_t block, int j) {
    const int64_t begin = std::min(block * block_count, buffers.count);
    const int64_t end = std::min(begin + block_count, buffers.count);
    const Range part = ChunkOf(end - begin, n, context.order.Before(j));
    return Range{begin + part.offset, part.count};
  };

  TFRING_RETURN_IF_ERROR(prims.Send(chunk(0, 1)));
  for (int64_t block = 0; block * block_count < buffers.count; ++block) {
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
    // See Note [Blocks].
    TFRING_RETURN_IF_ERROR(prims.Send(chunk(block + 1, 1)));
    TFRING_RETURN_IF_ERROR(prims.Recv(chunk(block, n - 1)));
  }
  return prims.Drain();
}

}  // namespace tfring
