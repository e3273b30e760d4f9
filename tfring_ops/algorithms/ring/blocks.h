// The ring reduces a long buffer in blocks.
#ifndef TFRING_OPS_ALGORITHMS_RING_BLOCKS_H_
#define TFRING_OPS_ALGORITHMS_RING_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// Note [Reduction by blocks]
// A long buffer is reduced block by block, so that a block stays in cache: the
// last primitive on a block writes to the memory that the first one has read.
// The first primitive on the next block runs before the last one on this block,
// so that the wire is never idle.  Begin and End run while the other block is
// on the wire.

// A subclass may prepare and finish each block.
class Blocks {
 public:
  // Cuts `count` elements into blocks of `block_count`.
  Blocks(int64_t count, int64_t block_count)
      : count_(count), block_count_(block_count) {}
  virtual ~Blocks() = default;

  int64_t size() const { return (count_ + block_count_ - 1) / block_count_; }
  // Returns the elements of a block.  Behind the last block, it returns an
  // empty range.
  Range at(int64_t block) const {
    const int64_t begin = std::min(block * block_count_, count_);
    return {begin, std::min(block_count_, count_ - begin)};
  }
  int64_t block_count() const { return block_count_; }

  // The elements of the ring's buffers that hold `block`.
  virtual Range Place(Range block) const { return block; }
  // Prepares a block before its first primitive.
  virtual absl::Status Begin(Range /*block*/) { return absl::OkStatus(); }
  // Finishes a block after its last primitive.
  virtual absl::Status End(Range /*block*/) { return absl::OkStatus(); }

 private:
  const int64_t count_, block_count_;
};

// The length of a block: a fixed number of segments in each rank's chunk, up to
// the next border.
inline int64_t BlockCount(const RingContext& context, DataType dtype) {
  constexpr int64_t kSegments = 4;
  return UpToBorder(kSegments * context.SegmentCount(dtype), dtype) *
         context.transport.size();
}

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_BLOCKS_H_
