// Predicts how long an allreduce takes on a planned cluster.
#include <string>

#include "absl/strings/str_cat.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/capi/c_status.h"
#include "tfring_ops/capi/capi.h"

const char* tfring_predict_allreduce(int32_t nodes, int32_t ranks_per_node,
                                     const double* costs, int32_t on_gpus,
                                     int64_t bytes) {
  return tfring::RunAsText([&] {
    const tfring::Layout layout{nodes, ranks_per_node};
    const tfring::Options options;
    const tfring::Costs links{{costs[0], costs[1]},
                              {costs[2], costs[3]},
                              {costs[4], costs[5]},
                              costs[6],
                              on_gpus != 0 ? options.device_segment_bytes
                                           : options.network_segment_bytes};
    const auto plans = Plans(layout, tfring::AllreduceAlgorithm::kAuto);
    const auto& plan = Fastest(plans, layout, links, bytes);
    return absl::StrCat(PredictSeconds(plan, layout, links, bytes), "\t",
                        plan.Name());
  });
}
