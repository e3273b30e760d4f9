#include "tfring_ops/engine/packing.h"

#include <algorithm>

#include "tfring_ops/engine/timeline.h"

namespace tfring {

void Packing::Load(Range range, std::byte* to) {
  const int64_t element_bytes = SizeInBytes(request_.dtype);
  const TimelineSpan span(Timeline::Phase::kPack, request_,
                          range.count * element_bytes);
  ForEachPart(range, [&](const RingPiece& piece, int64_t first, int64_t count) {
    const auto* input = static_cast<const std::byte*>(piece.input);
    kernels_.Scale(to, input + first * element_bytes, count, request_.dtype,
                   request_.prescale_factor);
    to += count * element_bytes;
  });
}

void Packing::Store(Range range, const std::byte* from) {
  const int64_t element_bytes = SizeInBytes(request_.dtype);
  const TimelineSpan span(Timeline::Phase::kUnpack, request_,
                          range.count * element_bytes);
  ForEachPart(range, [&](const RingPiece& piece, int64_t first, int64_t count) {
    auto* output = static_cast<std::byte*>(piece.output);
    kernels_.Copy(output + first * element_bytes, from, count * element_bytes);
    from += count * element_bytes;
  });
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
