// How a buffer is divided between ranks.
#ifndef TFRING_OPS_ALGORITHMS_RING_CHUNKS_H_
#define TFRING_OPS_ALGORITHMS_RING_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// Returns part `index` of `count` elements that are cut into `parts` runs.
// Their lengths differ by at most one, and the longer runs come first.
inline Range ChunkOf(int64_t count, int parts, int index) {
  const int64_t length = count / parts;
  const int64_t longer = count % parts;
  return {index * length + std::min<int64_t>(index, longer),
          length + (index < longer ? 1 : 0)};
}

// Returns the place of each run, where runs of these lengths follow each other.
inline std::vector<Range> Runs(absl::Span<const int64_t> lengths) {
  std::vector<Range> runs;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    runs.push_back({begin, length});
    begin += length;
  }
  return runs;
}

// Note [Aligned borders]
// A GPU computes 16 bytes at a time where all operands are aligned to that, and
// an element at a time elsewhere, which is several times slower.  So if the
// algorithm may choose, parts begin at a multiple of kBorderBytes, as does the
// memory: chunks, blocks, and each tensor of a message.  Between the tensors of
// a message there are up to kBorderBytes - 1 unused bytes, with values that
// nobody reads.  The caller chooses the rows of a reduce-scatter, which begin
// anywhere.
inline constexpr int64_t kBorderBytes = 64;

// Returns `count`, rounded up to the next border.
inline int64_t UpToBorder(int64_t count, DataType dtype) {
  const int64_t between = kBorderBytes / SizeInBytes(dtype);
  return (count + between - 1) / between * between;
}

// Returns `count`, rounded down to the last border, or `count` if that would
// leave no elements.
inline int64_t DownToBorder(int64_t count, DataType dtype) {
  const int64_t between = kBorderBytes / SizeInBytes(dtype);
  return count < between ? count : count / between * between;
}

// ChunkOf with chunks that begin at borders.  Their lengths differ by at most
// the distance between two borders; chunks behind the end are empty.
inline Range AlignedChunkOf(int64_t count, int parts, int index,
                            DataType dtype) {
  const int64_t between = kBorderBytes / SizeInBytes(dtype);
  const Range runs = ChunkOf(UpToBorder(count, dtype) / between, parts, index);
  const int64_t begin = std::min(runs.offset * between, count);
  const int64_t end = std::min((runs.offset + runs.count) * between, count);
  return {begin, end - begin};
}

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_CHUNKS_H_
