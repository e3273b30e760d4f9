#include <algorithm>
#include <iterator>
#include <memory>

#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/capi/capi.h"
#include "tfring_ops/offload/plan.h"

int32_t tfring_offload_statistics(int64_t plan, int64_t* fields,
                                  int32_t count) {
  return tfring::RunOr(1, [&] {
    const std::shared_ptr<tfring::Plan> found = tfring::Plan::Find(plan);
    if (found == nullptr) return 1;
    const tfring::PlanStatistics s = found->statistics();
    const int64_t all[] = {s.steps,
                           s.moved,
                           s.moved_bytes,
                           s.kept,
                           s.kept_bytes,
                           s.small,
                           s.out_ns,
                           s.back_ns,
                           s.step_ns,
                           s.peak_bytes,
                           s.tier.in_use_bytes,
                           s.tier.peak_bytes,
                           s.tier.reserved_bytes};
    std::copy_n(all, std::min<int64_t>(count, std::size(all)), fields);
    return 0;
  });
}
