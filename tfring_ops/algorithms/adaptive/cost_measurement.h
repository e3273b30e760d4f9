// The costs of this job's links and reductions, for the cost model.
#ifndef TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_
#define TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/clock.h"

namespace tfring {

// Note [Slow links]
// The messages that measure a link between nodes grow only until one takes much
// longer than its latency and than a computer's noise: a link of 100 Mbit/s is
// measured with a quarter of a megabyte, and one of 1 Gbit/s or more with
// several.  The ranks agree on each step, because their messages have one
// size.

// Measures the costs of the host, which takes some milliseconds, or some tens
// of milliseconds over a link of 1 Gbit/s.  Every rank gets the costs of the
// slowest one.  The messages are counted as control messages.  Collective.
absl::StatusOr<Costs> MeasureCosts(const RingContext& context,
                                   const Clock& clock = SteadyClock());

// Measures the costs of the host or of a device.  Messages and operands have up
// to `transfer_bytes`; await() returns when the transport and the kernels have
// completed all their work; largest() returns the largest of the numbers that
// the ranks give it.  Collective.
absl::StatusOr<Costs> MeasureCosts(
    const RingContext& context, int64_t transfer_bytes,
    const std::function<absl::Status()>& await,
    const std::function<absl::StatusOr<double>(double)>& largest,
    const Clock& clock = SteadyClock());

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MEASUREMENT_H_
