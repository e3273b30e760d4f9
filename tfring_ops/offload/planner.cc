#include "tfring_ops/offload/planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tfring {

int64_t MeasuredStep::peak() const {
  return peaks.empty() ? 0 : *std::max_element(peaks.begin(), peaks.end());
}

std::vector<bool> ChooseToKeep(const MeasuredStep& step, int64_t budget_bytes) {
  std::vector<bool> keep(step.items.size());
  std::vector<int64_t> peaks = step.peaks;
  std::vector<int> by_return(step.items.size());
  std::iota(by_return.begin(), by_return.end(), 0);
  std::sort(by_return.begin(), by_return.end(), [&](int one, int other) {
    return std::pair(step.items[one].back, one) <
           std::pair(step.items[other].back, other);
  });
  for (const int i : by_return) {
    const MeasuredStep::Item& item = step.items[i];
    if (item.away < 0 || item.back < 0) continue;
    // In these intervals it would be allocated, and was not.
    const auto begin = peaks.begin() + item.away + 1;
    const auto end = peaks.begin() + item.back + 1;
    if (begin < end &&
        *std::max_element(begin, end) + item.bytes > budget_bytes) {
      continue;
    }
    keep[i] = true;
    for (auto peak = begin; peak < end; ++peak) *peak += item.bytes;
  }
  return keep;
}

}  // namespace tfring
