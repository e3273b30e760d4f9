#include "tfring_ops/engine/packing.h"

#include <algorithm>

#include "tfring_ops/engine/timeline.h"

namespace tfring {

void Packing::Load(Range range, std::byte* to) {
  const DataType wire = WireType(request_);
  const int64_t element_bytes = SizeInBytes(request_.dtype);
  const int64_t wire_bytes = SizeInBytes(wire);
  const TimelineSpan span(Timeline::Phase::kPack, request_,
                          range.count * wire_bytes);
  copies_.clear();
  ForEachPart(range, [&](const RingPiece& piece, int64_t first, int64_t count) {
    const auto* input = static_cast<const std::byte*>(piece.input);
    copies_.push_back({input + first * element_bytes, to, count});
    to += count * wire_bytes;
  });
  kernels_.CopyPieces(copies_, request_.dtype, wire, request_.prescale_factor);
}

void Packing::Store(Range range, const std::byte* from) {
  const DataType wire = WireType(request_);
  const int64_t element_bytes = SizeInBytes(request_.dtype);
  const int64_t wire_bytes = SizeInBytes(wire);
  const TimelineSpan span(Timeline::Phase::kUnpack, request_,
                          range.count * wire_bytes);
  copies_.clear();
  ForEachPart(range, [&](const RingPiece& piece, int64_t first, int64_t count) {
    auto* output = static_cast<std::byte*>(piece.output);
    copies_.push_back({from, output + first * element_bytes, count});
    from += count * wire_bytes;
  });
  kernels_.CopyPieces(copies_, wire, request_.dtype, /*factor=*/1.0);
}

template <typename Visitor>
void Packing::ForEachPart(Range range, const Visitor& visit) const {
  int64_t offset = 0;  // of the piece
  for (const RingPiece& piece : pieces_) {
    const int64_t begin = std::max(offset, range.offset);
    const int64_t end =
        std::min(offset + piece.count, range.offset + range.count);
    if (begin < end) visit(piece, begin - offset, end - begin);
    offset += piece.count;
  }
}

}  // namespace tfring
