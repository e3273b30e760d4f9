// The costs of this job's links and reductions, for the cost model.
#ifndef TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_
#define TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// Measures for some milliseconds, over a link of 1 Gbit/s some tens of them.
// The result is the slowest rank's, the same on all.
//
// Collective; on the host only.
absl::StatusOr<Costs> MeasureCosts(const RingContext& context);

// The same of this rank alone, on a device, too: messages and operands have up
// to `transfer_bytes`, and await() returns when all has been done that the
// transport and the kernels have been asked for.  Collective.
absl::StatusOr<Costs> MeasureOwnCosts(
    const RingContext& context, int64_t transfer_bytes,
    const std::function<absl::Status()>& await);

// The costs of the slowest rank: the largest of each.  REQUIRES: not empty.
Costs Slowest(absl::Span<const Costs> of_ranks);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_
