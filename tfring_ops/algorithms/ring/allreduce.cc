#include "tfring_ops/algorithms/ring/allreduce.h"

#include <algorithm>

#include "tfring_ops/algorithms/ring/blocks.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// One rank has nothing to reduce.
void CopyAlone(const Kernels& kernels, const RingBuffers& buffers,
               const RingPiece& piece) {
  kernels.Copy(piece.output, piece.input,
               piece.count * SizeInBytes(buffers.dtype));
  if (buffers.scale != 1.0) {
    kernels.Scale(piece.output, piece.count, buffers.dtype, buffers.scale);
  }
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
  return AllreduceByBlocks(context, prims, buffers.count, buffers.dtype,
                           BlockCount(context, buffers.dtype), nothing, nothing,
                           [](Range block) { return block; });
}

// Note [Two blocks of staging]
// Blocks use the two halves of the stage in turn.  A block is loaded when the
// one before the last has been stored.  The sends of that one are complete by
// then: a primitive waits for the sends of the primitive before the last, and
// two primitives begin after a block's last send, of which one is its last.
absl::Status StagedRingAllreduce(const RingContext& context,
                                 RingBuffers buffers,
                                 absl::Span<std::byte> stage,
                                 Staging& staging) {
  const int n = context.transport.size();
  const int64_t element_bytes = SizeInBytes(buffers.dtype);
  const auto stage_count = static_cast<int64_t>(stage.size()) / element_bytes;
  int64_t block_count = BlockCount(context, buffers.dtype);
  if (buffers.count > stage_count) {
    block_count =
        std::min(block_count, DownToBorder(stage_count / 2, buffers.dtype));
  }
  const bool wraps = buffers.count > stage_count;
  const auto place = [&](Range block) {
    if (wraps) block.offset = block.offset / block_count % 2 * block_count;
    return block;
  };
  const auto memory = [&](Range block) {
    return stage.data() + place(block).offset * element_bytes;
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
  return AllreduceByBlocks(context, prims, buffers.count, buffers.dtype,
                           block_count, load, store, place);
}

int64_t StageBytes(const RingContext& context, DataType dtype) {
  return 2 * BlockCount(context, dtype) * SizeInBytes(dtype);
}

}  // namespace tfring
