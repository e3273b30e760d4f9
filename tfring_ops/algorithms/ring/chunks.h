// How a buffer is shared out between ranks.
#ifndef TFRING_OPS_ALGORITHMS_RING_CHUNKS_H_
#define TFRING_OPS_ALGORITHMS_RING_CHUNKS_H_

#include <algorithm>
#include <cstdint>

#include "tfring_ops/base/types.h"

namespace tfring {

// Part `index` of `count` elements cut into `parts` runs whose lengths differ
// by one at most; the longer runs come first.
inline Range ChunkOf(int64_t count, int parts, int index) {
  const int64_t length = count / parts;
  const int64_t longer = count % parts;
  return {index * length + std::min<int64_t>(index, longer),
          length + (index < longer ? 1 : 0)};
}

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_CHUNKS_H_
