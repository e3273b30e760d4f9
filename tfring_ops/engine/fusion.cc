#include "tfring_ops/engine/fusion.h"

#include <utility>

namespace tfring {

bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b) {
  return a.kind == CollectiveKind::kAllreduce &&
         b.kind == CollectiveKind::kAllreduce && a.dtype == b.dtype &&
         OnDevice(a) == OnDevice(b) && a.op == b.op &&
         a.prescale_factor == b.prescale_factor &&
         a.postscale_factor == b.postscale_factor;
}

std::vector<std::vector<int>> PlanPacks(absl::Span<const int64_t> sizes,
                                        int64_t threshold_bytes) {
  std::vector<std::vector<int>> packs;
  std::vector<int> pack;
  int64_t pack_bytes = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    const int index = static_cast<int>(i);
    if (sizes[i] > kPackLimitBytes) {
      packs.push_back({index});
      continue;
    }
    if (!pack.empty() && pack_bytes + sizes[i] > threshold_bytes) {
      packs.push_back(std::exchange(pack, {}));
      pack_bytes = 0;
    }
    pack.push_back(index);
    pack_bytes += sizes[i];
  }
  if (!pack.empty()) packs.push_back(std::move(pack));
  return packs;
}

}  // namespace tfring
