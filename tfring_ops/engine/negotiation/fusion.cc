#include "tfring_ops/engine/negotiation/fusion.h"

namespace tfring {

bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.kind == CollectiveKind::kAllreduce &&
         b.kind == CollectiveKind::kAllreduce && a.dtype == b.dtype &&
         WireType(a) == WireType(b) && OnDevice(a) == OnDevice(b) &&
         a.op == b.op && a.prescale_factor == b.prescale_factor &&
         a.postscale_factor == b.postscale_factor;
}

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

}  // namespace tfring
