#include "tfring_ops/algorithms/ring/staged_allreduce.h"

#include <algorithm>

#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/blocks.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// Note [Two blocks of staging]
// If the stage does not hold everything, blocks use its two halves in turn.  A
// block is loaded when the one before the last has been stored.  By then the
// sends of the stored block are complete: a primitive waits for the sends of
// the primitive before the last one, and two primitives begin after a block's
// last send, of which one is the block's last.
class StagedBlocks final : public Blocks {
 public:
  StagedBlocks(int64_t count, int64_t block_count, bool takes_halves,
               absl::Span<std::byte> stage, int64_t element_bytes,
               const Kernels& kernels, Staging& staging)
      : Blocks(count, block_count),
        takes_halves_(takes_halves),
        stage_(stage),
        element_bytes_(element_bytes),
        kernels_(kernels),
        staging_(staging) {}

  Range Place(Range block) const override {
    if (takes_halves_) {
      block.offset = block.offset / block_count() % 2 * block_count();
    }
    return block;
  }
  absl::Status Begin(Range block) override {
    if (block.count == 0) return absl::OkStatus();
    staging_.Load(block, Memory(block));
    return kernels_.Synchronize();
  }
  absl::Status End(Range block) override {
    staging_.Store(block, Memory(block));
    return kernels_.Synchronize();
  }

  std::byte* Memory(Range block) const {
    return stage_.data() + Place(block).offset * element_bytes_;
  }

 private:
  const bool takes_halves_;
  const absl::Span<std::byte> stage_;
  const int64_t element_bytes_;
  const Kernels& kernels_;
  Staging& staging_;
};

}  // namespace

absl::Status StagedRingAllreduce(const RingContext& context,
                                 RingBuffers buffers,
                                 absl::Span<std::byte> stage,
                                 Staging& staging) {
  const int64_t element_bytes = SizeInBytes(buffers.dtype);
  const auto stage_count = static_cast<int64_t>(stage.size()) / element_bytes;
  const bool takes_halves = buffers.count > stage_count;
  int64_t block_count = BlockCount(context, buffers.dtype);
  if (takes_halves) {
    block_count =
        std::min(block_count, DownToBorder(stage_count / 2, buffers.dtype));
  }
  StagedBlocks blocks(buffers.count, block_count, takes_halves, stage,
                      element_bytes, context.kernels, staging);
  if (const int n = context.transport.size(); n > 1) {
    if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
    buffers.input = buffers.output = stage.data();
    return RingAllreduceBlocks(context, buffers, blocks);
  }
  for (int64_t i = 0; i < blocks.size(); ++i) {
    const Range block = blocks.at(i);
    buffers.input = buffers.output = blocks.Memory(block);
    buffers.count = block.count;
    TFRING_RETURN_IF_ERROR(blocks.Begin(block));
    TFRING_RETURN_IF_ERROR(RingAllreduce(context, buffers));
    TFRING_RETURN_IF_ERROR(blocks.End(block));
  }
  return absl::OkStatus();
}

int64_t StageBytes(const RingContext& context, DataType dtype) {
  return 2 * BlockCount(context, dtype) * SizeInBytes(dtype);
}

}  // namespace tfring
