#include "tfring_ops/engine/execution/packing.h"

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
  double factor = 1.0;  // of all in copies_
  const auto copy = [&] {
    kernels_.CopyPieces(copies_, request_.dtype, wire, factor);
    copies_.clear();
  };
  ForEachPart(range, [&](size_t index, int64_t first, int64_t count) {
    if (factors_[index] != factor) {
      if (!copies_.empty()) copy();
      factor = factors_[index];
    }
    const auto* input = static_cast<const std::byte*>(pieces_[index].input);
    copies_.push_back({input + first * element_bytes, to, count});
    to += count * wire_bytes;
  });
  copy();
}

void Packing::Store(Range range, const std::byte* from) {
  const DataType wire = WireType(request_);
  const int64_t element_bytes = SizeInBytes(request_.dtype);
  const int64_t wire_bytes = SizeInBytes(wire);
  const TimelineSpan span(Timeline::Phase::kUnpack, request_,
                          range.count * wire_bytes);
  copies_.clear();
  ForEachPart(range, [&](size_t index, int64_t first, int64_t count) {
    auto* output = static_cast<std::byte*>(pieces_[index].output);
    copies_.push_back({from, output + first * element_bytes, count});
    from += count * wire_bytes;
  });
  kernels_.CopyPieces(copies_, wire, request_.dtype, /*factor=*/1.0);
}

template <typename Visitor>
void Packing::ForEachPart(Range range, const Visitor& visit) const {
  int64_t offset = 0;  // of the piece
  for (size_t index = 0; index < pieces_.size(); ++index) {
    const int64_t count = pieces_[index].count;
    const int64_t begin = std::max(offset, range.offset);
    const int64_t end = std::min(offset + count, range.offset + range.count);
    if (begin < end) visit(index, begin - offset, end - begin);
    offset += count;
  }
}

}  // namespace tfring
