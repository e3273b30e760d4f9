#include "tfring_ops/offload/planner.h"

#include <algorithm>
#include <numeric>

namespace tfring {

std::vector<bool> ChooseToKeep(const std::vector<FeatureMap>& feature_maps,
                               int64_t budget_bytes) {
  std::vector<bool> keep(feature_maps.size());
  std::vector<int> by_return(feature_maps.size());
  std::iota(by_return.begin(), by_return.end(), 0);
  std::stable_sort(by_return.begin(), by_return.end(), [&](int one, int other) {
    return feature_maps[one].back < feature_maps[other].back;
  });
  for (const int i : by_return) {
    const FeatureMap& feature_map = feature_maps[i];
    if (feature_map.back < 0 || feature_map.bytes > budget_bytes) continue;
    keep[i] = true;
    budget_bytes -= feature_map.bytes;
  }
  return keep;
}

}  // namespace tfring
