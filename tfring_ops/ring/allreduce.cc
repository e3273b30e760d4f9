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

// One rank has nothing to reduce.
void CopyAlone(const Kernels& kernels, const RingBuffers& buffers,
               const RingPiece& piece) {
  kernels.Copy(piece.output, piece.input,
               piece.count * SizeInBytes(buffers.dtype));
  if (buffers.scale != 1.0) {
    kernels.Scale(piece.output, piece.count, buffers.dtype, buffers.scale);
  }
}

// Calls load(block) before a block's first move, store(block) after its last,
// and place(block), where its first element is for `prims`.
template <typename Load, typename Store, typename Place>
absl::Status Run(const RingContext& context, Primitives& prims, int64_t count,
                 int64_t block_count, const Load& load, const Store& store,
                 const Place& place) {
  const int n = context.transport.size();
  const auto range = [&](int64_t block) {
    const int64_t begin = std::min(block * block_count, count);
    return Range{begin, std::min(block_count, count - begin)};
  };
  // Of a block of the buffer, the chunk that was this rank's `j` steps ago.
  const auto chunk = [&](int64_t block, int j) {
    const Range part = ChunkOf(range(block).count, n, context.order.Before(j));
    return Range{place(range(block)) + part.offset, part.count};
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
    // See Note [Blocks].
    TFRING_RETURN_IF_ERROR(load(range(block + 1)));
    TFRING_RETURN_IF_ERROR(prims.Send(chunk(block + 1, 1)));
    TFRING_RETURN_IF_ERROR(prims.Recv(chunk(block, n - 1)));
    TFRING_RETURN_IF_ERROR(store(range(block)));
  }
  return prims.Drain();
}

}  // namespace

absl::Status RingAllreduce(const RingContext& context, RingBuffers buffers) {
  const int n = context.transport.size();
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
  if (n == 1) {
    const RingPiece whole{buffers.input, buffers.output, buffers.count};
    if (buffers.pieces.empty()) buffers.pieces = absl::MakeConstSpan(&whole, 1);
    for (const RingPiece& piece : buffers.pieces) {
      CopyAlone(context.kernels, buffers, piece);
    }
    return context.kernels.Synchronize();
  }
  Primitives prims(context, buffers);
  const auto nothing = [](Range) { return absl::OkStatus(); };
  return Run(context, prims, buffers.count, BlockCount(context, buffers.dtype),
             nothing, nothing, [](Range block) { return block.offset; });
}

// Note [Two blocks of staging]
// Blocks go through the two halves of the stage in turn.  A block is loaded
// when the one before the last has been stored.  What that one sent has left by
// then: a move waits for the sends of the move before the last, and two moves
// begin after a block's last send, of which one is its last.
absl::Status StagedRingAllreduce(const RingContext& context,
                                 RingBuffers buffers,
                                 absl::Span<std::byte> stage,
                                 Staging& staging) {
  const int n = context.transport.size();
  const int64_t element_bytes = SizeInBytes(buffers.dtype);
  const auto stage_count = static_cast<int64_t>(stage.size()) / element_bytes;
  int64_t block_count = BlockCount(context, buffers.dtype);
  if (buffers.count > stage_count) {
    block_count = std::min(block_count, stage_count / 2);
  }
  const bool wraps = buffers.count > stage_count;
  const auto place = [&](Range block) {
    return wraps ? block.offset / block_count % 2 * block_count : block.offset;
  };
  const auto memory = [&](Range block) {
    return stage.data() + place(block) * element_bytes;
  };
  const auto load = [&](Range block) {
    if (block.count == 0) return absl::OkStatus();
    staging.Load(block, memory(block));
    return context.kernels.Synchronize();
  };
  const auto store = [&](Range block) {
    staging.Store(block, memory(block));
    return context.kernels.Synchronize();
  };

  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
  buffers.input = buffers.output = stage.data();
  if (n == 1) {
    for (int64_t first = 0; first < buffers.count; first += block_count) {
      const Range block{first, std::min(block_count, buffers.count - first)};
      TFRING_RETURN_IF_ERROR(load(block));
      CopyAlone(context.kernels, buffers,
                {memory(block), memory(block), block.count});
      TFRING_RETURN_IF_ERROR(store(block));
    }
    return absl::OkStatus();
  }
  Primitives prims(context, buffers);
  return Run(context, prims, buffers.count, block_count, load, store, place);
}

int64_t StageBytes(const RingContext& context, DataType dtype) {
  return 2 * BlockCount(context, dtype) * SizeInBytes(dtype);
}

}  // namespace tfring
