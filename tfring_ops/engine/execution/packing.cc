#include "tfring_ops/engine/execution/packing.h"

#include <algorithm>

#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {

std::vector<Pack> PlanPacks(absl::Span<const int64_t> sizes,
                            int64_t threshold_bytes) {
  std::vector<Pack> packs;
  for (const Pack::Place place : {Pack::Place::kTensors, Pack::Place::kStage}) {
    int64_t pack_bytes = 0;
    bool grows = false;  // whether the last pack may
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool is_small = sizes[i] <= kStagedBytes;
      if (sizes[i] == 0 || is_small != (place == Pack::Place::kStage)) continue;
      if (!grows || pack_bytes + sizes[i] > threshold_bytes) {
        packs.push_back({place, {}});
        pack_bytes = 0;
        grows = true;
      }
      packs.back().tensors.push_back(static_cast<int>(i));
      pack_bytes += sizes[i];
    }
  }
  // Nothing is gained by copying one tensor.
  for (Pack& pack : packs) {
    if (pack.tensors.size() == 1) pack.place = Pack::Place::kTensors;
  }
  return packs;
}

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
  ForEachPart(
      range, [&](size_t index, int64_t first, int64_t count, int64_t place) {
        if (factors_[index] != factor) {
          if (!copies_.empty()) copy();
          factor = factors_[index];
        }
        const auto* input = static_cast<const std::byte*>(pieces_[index].input);
        copies_.push_back(
            {input + first * element_bytes, to + place * wire_bytes, count});
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
  ForEachPart(
      range, [&](size_t index, int64_t first, int64_t count, int64_t place) {
        auto* output = static_cast<std::byte*>(pieces_[index].output);
        copies_.push_back(
            {from + place * wire_bytes, output + first * element_bytes, count});
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
    if (begin < end) {
      visit(index, begin - offset, end - begin, begin - range.offset);
    }
    offset += UpToBorder(count, WireType(request_));
  }
}

}  // namespace tfring
