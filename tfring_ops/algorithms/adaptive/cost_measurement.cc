#include "tfring_ops/algorithms/adaptive/cost_measurement.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/counting.h"

namespace tfring {
namespace {

constexpr int kRuns = 3;
// The least and the greatest number of steps in a run that measures a latency:
// see Note [Late ranks].
constexpr int kLeastSteps = 10;
constexpr int kMostSteps = 64;
// The bytes of a run of transfers take so many latencies, or longer.
constexpr double kLatencies = 20;
constexpr int64_t kMessageBytes = 8;
// Bytes that a node sends over its link to measure the host's bandwidth.
constexpr int64_t kTransferBytes = 1 << 20;
// This many segments are enough where segments are so small that more bytes
// would take long.
constexpr int64_t kTransferSegments = 32;
// The first size of a transfer between nodes, and the factor by which it grows:
// see Note [Slow links].
constexpr int64_t kFirstTransferBytes = 16 << 10;
constexpr int64_t kGrowth = 4;
// A transfer that takes this much longer than the latency is large enough.
constexpr double kLongSeconds = 4e-3;

// Returns the least time of several runs, because other load only adds to it.
template <typename Body>
absl::StatusOr<double> LeastSeconds(const Clock& clock, int runs,
                                    const Body& body) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point begin = clock.Now();
    TFRING_RETURN_IF_ERROR(body());
    const std::chrono::duration<double> taken = clock.Now() - begin;
    least = std::min(least, taken.count());
  }
  return least;
}

// The buffers and functions of a measurement.
struct Means {
  const std::byte* sent;
  std::byte* received;
  const std::function<absl::Status()>& await;
  const std::function<absl::StatusOr<double>(double)>& largest;
  const Clock& clock;
  const RingGrid& grid;  // within nodes, and between them
};

// A barrier by dissemination: after the last round along an axis a rank has
// heard of all others on it.  Without it ranks would measure how late others
// are.  It returns on all ranks within some latencies: see Note [Late ranks].
absl::Status Meet(const Means& means) {
  for (const size_t axis : {1, 0}) {
    const RingContext& ring = *means.grid.rings()[axis];
    const int n = ring.order.size();
    for (int distance = 1; distance < n; distance *= 2) {
      TFRING_RETURN_IF_ERROR(SendRecv(ring, ring.order.Before(n - distance),
                                      means.sent, ring.order.Before(distance),
                                      means.received, kMessageBytes));
    }
  }
  return means.await();
}

// Note [Late ranks]
// A rank that is late finds its message there already, and the rank after it
// waits for longer, so a single step may seem to take no time, or a latency
// more than it does.  Over as many steps as the ring has ranks, each rank meets
// every other one's lateness once, and the mean is exact.  So latencies are
// measured with that many steps, or with kMostSteps in a larger ring.  Of
// transfers, which take longer, a run has as many steps as make a latency small
// beside it.

// Measures the slowest link of a ring by messages of `first_bytes` to
// `last_bytes`: see Note [Slow links].
absl::StatusOr<LinkCosts> MeasureLink(const RingContext& ring,
                                      const Means& means, int64_t first_bytes,
                                      int64_t last_bytes) {
  const RingOrder& order = ring.order;
  if (order.size() == 1) return LinkCosts();
  const auto steps = [&](int count, int64_t bytes) -> absl::Status {
    for (int i = 0; i < count; ++i) {
      TFRING_RETURN_IF_ERROR(SendRecv(ring, order.Before(order.size() - 1),
                                      means.sent, order.Before(1),
                                      means.received, bytes));
    }
    return means.await();
  };
  // Returns the slowest rank's time for a step, from the least of so many runs.
  const auto step_seconds = [&](int runs, int count,
                                int64_t bytes) -> absl::StatusOr<double> {
    TFRING_RETURN_IF_ERROR(Meet(means));
    TFRING_ASSIGN_OR_RETURN(
        const double own,
        LeastSeconds(means.clock, runs, [&] { return steps(count, bytes); }));
    return means.largest(own / count);
  };
  const int rounds = (kLeastSteps + order.size() - 1) / order.size();
  const int most_steps = std::min(rounds * order.size(), kMostSteps);
  LinkCosts costs;
  TFRING_ASSIGN_OR_RETURN(costs.latency_seconds,
                          step_seconds(kRuns, most_steps, kMessageBytes));
  const double latency = costs.latency_seconds;
  // Returns the number of steps in a run of transfers that take so long.
  const auto steps_for = [&](double seconds_of_bytes) {
    const double wanted =
        std::min(kLatencies * latency / std::max(seconds_of_bytes, 1e-9),
                 kLongSeconds / std::max(latency, 1e-9));
    return static_cast<int>(std::clamp<double>(wanted, 1, most_steps));
  };
  int64_t bytes = std::min(first_bytes, last_bytes);
  // The first transfer is not counted.  It is faster than the rest where a link
  // lets bursts through, and slower where a connection has to find its pace.
  TFRING_ASSIGN_OR_RETURN(double transfer, step_seconds(1, 1, bytes));
  // A link that several ranks share hides the latency of all but the first
  // message.  So the time per byte follows from how much slower a larger
  // transfer is.
  double seconds_before = latency;
  int64_t bytes_before = 0;
  while (true) {
    TFRING_ASSIGN_OR_RETURN(
        transfer, step_seconds(kRuns, steps_for(transfer - latency), bytes));
    costs.seconds_per_byte =
        std::max(0.0, transfer - seconds_before) / (bytes - bytes_before);
    if (bytes == last_bytes ||
        transfer - latency >= std::max(kLongSeconds, latency / 2)) {
      return costs;
    }
    seconds_before = transfer;
    bytes_before = bytes;
    const int64_t next = std::min(kGrowth * bytes, last_bytes);
    // The next transfer is expected to take this long.
    transfer += costs.seconds_per_byte * static_cast<double>(next - bytes);
    bytes = next;
  }
}

// Returns the largest of all ranks' numbers.
absl::StatusOr<double> Largest(const RingContext& context, double own) {
  auto number = std::make_unique<double>(own);
  RingBuffers buffers;
  buffers.input = buffers.output = number.get();
  buffers.dtype = DataType::kFloat64;
  buffers.count = 1;
  buffers.op = ReduceOp::kMax;
  if (absl::Status status = RecursiveDoublingAllreduce(context, buffers);
      !status.ok()) {
    KeepForever(std::move(number));  // Messages may still use it.
    return status;
  }
  return *number;
}

// Measures with messages in `workspace`.
absl::StatusOr<Costs> Measure(
    const RingContext& context, int64_t transfer_bytes,
    const std::function<absl::Status()>& await,
    const std::function<absl::StatusOr<double>(double)>& largest,
    const Clock& clock, Workspace& workspace) {
  const Layout layout = Layout::Of(context.transport);
  const Kernels& kernels = context.kernels;
  TFRING_ASSIGN_OR_RETURN(std::byte* const sent,
                          workspace.AtLeast(2 * transfer_bytes));
  std::byte* const received = sent + transfer_bytes;
  const std::vector<std::byte> zeros(transfer_bytes);
  kernels.Upload(sent, zeros.data(), transfer_bytes);
  kernels.Upload(received, zeros.data(), transfer_bytes);

  const int64_t bytes =
      std::min(transfer_bytes, kTransferSegments * context.segment_bytes);
  const RingGrid grid(context, {layout.ranks_per_node, layout.nodes});
  const Means means{sent, received, await, largest, clock, grid};
  Costs costs;
  costs.segment_bytes = context.segment_bytes;
  if (layout.nodes == 1) {
    TFRING_ASSIGN_OR_RETURN(costs.within,
                            MeasureLink(context, means, bytes, bytes));
  } else {
    TFRING_ASSIGN_OR_RETURN(costs.within,
                            MeasureLink(*grid.rings()[0], means, bytes, bytes));
    TFRING_ASSIGN_OR_RETURN(
        costs.across, MeasureLink(context, means, kFirstTransferBytes, bytes));
    costs.shared_across = costs.across;
    if (layout.ranks_per_node > 1) {
      const int64_t share = std::max<int64_t>(1, bytes / layout.ranks_per_node);
      TFRING_ASSIGN_OR_RETURN(
          costs.shared_across,
          MeasureLink(*grid.rings()[1], means, kFirstTransferBytes, share));
    }
  }
  const auto count = static_cast<int64_t>(transfer_bytes / sizeof(float));
  TFRING_ASSIGN_OR_RETURN(const double reduction,
                          LeastSeconds(clock, kRuns, [&] {
                            kernels.Reduce(sent, sent, received, count,
                                           DataType::kFloat32, ReduceOp::kSum);
                            const absl::Status status = kernels.Synchronize();
                            return status.ok() ? await() : status;
                          }));
  TFRING_ASSIGN_OR_RETURN(const double slowest, largest(reduction));
  costs.reduce_seconds_per_byte = slowest / transfer_bytes;
  return costs;
}

}  // namespace

absl::StatusOr<Costs> MeasureCosts(const RingContext& context,
                                   const Clock& clock) {
  const CountedAs control(context.transport, kControlMessages);
  return MeasureCosts(
      context, kTransferBytes, [] { return absl::OkStatus(); },
      [&](double own) { return Largest(context, own); }, clock);
}

absl::StatusOr<Costs> MeasureCosts(
    const RingContext& context, int64_t transfer_bytes,
    const std::function<absl::Status()>& await,
    const std::function<absl::StatusOr<double>(double)>& largest,
    const Clock& clock) {
  Workspace workspace(context.kernels);
  absl::StatusOr<Costs> costs =
      Measure(context, transfer_bytes, await, largest, clock, workspace);
  if (!costs.ok()) workspace.Keep();  // Messages may still use it.
  return costs;
}

}  // namespace tfring
