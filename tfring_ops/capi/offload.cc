#include <algorithm>
#include <iterator>
#include <memory>

#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/capi/capi.h"
#include "tfring_ops/offload/plan.h"

int32_t tfring_offload_statistics(int64_t plan, int64_t* fields) {
  return tfring::RunOr(1, [=] {
    const std::shared_ptr<tfring::Plan> found = tfring::Plan::Find(plan);
    if (found == nullptr) return 1;
    const tfring::PlanStatistics s = found->statistics();
    const int64_t all[] = {
        s.moved,      s.moved_bytes,       s.kept_bytes,
        s.peak_bytes, s.tier.in_use_bytes, s.tier.peak_bytes};
    std::copy(std::begin(all), std::end(all), fields);
    return 0;
  });
}
