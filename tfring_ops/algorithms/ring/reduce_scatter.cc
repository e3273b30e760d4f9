#include "tfring_ops/algorithms/ring/reduce_scatter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status RingReduceScatter(const RingContext& context, RingBuffers buffers,
                               absl::Span<const Range> chunks) {
  const int n = context.transport.size();
  if (n == 1) return RingAllreduce(context, buffers);
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;

  Primitives prims(context, buffers);
  // Returns the chunk of the rank that is `j` places before this one in the
  // ring.
  const auto chunk = [&](int j) { return chunks[context.order.Before(j)]; };

  // Chunk r travels once round the ring and is complete at rank r.
  TFRING_RETURN_IF_ERROR(prims.Send(chunk(1)));
  for (int j = 2; j < n; ++j) {
    TFRING_RETURN_IF_ERROR(prims.RecvReduceSend(chunk(j)));
  }
  TFRING_RETURN_IF_ERROR(prims.RecvReduceCopy(chunk(0)));
  return prims.Drain();
}

// Note [Three places for partial sums]
// Every chunk is reduced part by part, as in Note [Reduction by blocks], and
// the sums of successive primitives go to three places in turn.  When a
// primitive begins, the sends of at most two before it are in flight: see
// Primitives::Run.
absl::Status RingReduceScatterOwn(const RingContext& context,
                                  RingBuffers buffers,
                                  absl::Span<const Range> chunks) {
  constexpr int64_t kPartSegments = 4;
  constexpr int kPlaces = 3;
  const int n = context.transport.size();
  const int64_t element_bytes = SizeInBytes(buffers.dtype);
  const int64_t part_count =
      kPartSegments * context.SegmentCount(buffers.dtype);
  const int64_t part_bytes = part_count * element_bytes;
  const int64_t slot_bytes = Primitives::ScratchBytes(context, buffers.dtype);
  TFRING_ASSIGN_OR_RETURN(
      std::byte* const scratch,
      context.scratch.AtLeast(slot_bytes + kPlaces * part_bytes));

  int64_t longest = 0;
  for (const Range& chunk : chunks) longest = std::max(longest, chunk.count);
  const auto* const input = static_cast<const std::byte*>(buffers.input);
  auto* const output = static_cast<std::byte*>(buffers.output);
  // Each part of each chunk is a piece.  Number `round * n + j` belongs to the
  // chunk of the rank `j` places before this one.
  std::vector<RingPiece> pieces;
  std::vector<Range> parts;
  buffers.count = 0;
  for (int64_t first = 0; first < longest; first += part_count) {
    for (int j = 0; j < n; ++j) {
      const Range chunk = chunks[context.order.Before(j)];
      const int64_t begin = std::min(first, chunk.count);
      const int64_t count = std::min(part_count, chunk.count - begin);
      std::byte* const sum =
          j == 0 ? output + begin * element_bytes
                 : scratch + slot_bytes + j % kPlaces * part_bytes;
      pieces.push_back(
          {input + (chunk.offset + begin) * element_bytes, sum, count});
      parts.push_back({buffers.count, count});
      buffers.count += UpToBorder(count, buffers.dtype);
    }
  }
  buffers.pieces = pieces;
  if (n == 1) return RingAllreduce(context, buffers);
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;

  Primitives prims(context, buffers);
  for (size_t first = 0; first < parts.size(); first += n) {
    const Range* const part = &parts[first];
    TFRING_RETURN_IF_ERROR(prims.Send(part[1]));
    for (int j = 2; j < n; ++j) {
      TFRING_RETURN_IF_ERROR(prims.RecvReduceSend(part[j]));
    }
    TFRING_RETURN_IF_ERROR(prims.RecvReduceCopy(part[0]));
  }
  return prims.Drain();
}

}  // namespace tfring
