// The costs of this job's links and reductions, for the cost model.
#ifndef TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_
#define TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_

#include "absl/status/statusor.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// Measures for some milliseconds, over a link of 1 Gbit/s some tens of them.
// The result is that of the slowest rank, the same on all.
//
// Collective; on the host only.
absl::StatusOr<Costs> MeasureCosts(const RingContext& context);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_
