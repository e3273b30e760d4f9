#include "tfring_ops/algorithms/adaptive/cost_measurement.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepetitions = 3;
// Messages to measure a latency by: a rank alone may find its message there
// already, but not all of them.
constexpr int kMessages = 10;
constexpr int64_t kMessageBytes = 8;
// Bytes that a node sends over its link to measure the bandwidth of the host's.
constexpr int64_t kTransferBytes = 1 << 20;
// Enough where segments are so small that it would take long.
constexpr int64_t kTransferSegments = 32;

// The least time of some runs: other load only adds to it.
template <typename Body>
absl::StatusOr<double> LeastSeconds(const Body& body) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepetitions; ++i) {
    const Clock::time_point begin = Clock::now();
    TFRING_RETURN_IF_ERROR(body());
    const std::chrono::duration<double> taken = Clock::now() - begin;
    least = std::min(least, taken.count());
  }
  return least;
}

// Sends from `sent` to `received`, each of `bytes`.
absl::StatusOr<LinkCosts> MeasureLink(
    const RingContext& ring, const std::byte* sent, std::byte* received,
    int64_t bytes, const std::function<absl::Status()>& await) {
  const RingOrder& order = ring.order;
  if (order.size() == 1) return LinkCosts();
  const auto step = [&](int64_t step_bytes) {
    return SendRecv(ring, order.Before(order.size() - 1), sent, order.Before(1),
                    received, step_bytes);
  };
  // Until all are there.
  for (int i = 0; i < order.size(); ++i) {
    TFRING_RETURN_IF_ERROR(step(kMessageBytes));
  }
  TFRING_RETURN_IF_ERROR(await());
  LinkCosts costs;
  TFRING_ASSIGN_OR_RETURN(const double messages, LeastSeconds([&] {
                            absl::Status status;
                            for (int i = 0; i < kMessages && status.ok(); ++i) {
                              status = step(kMessageBytes);
                            }
                            return status.ok() ? await() : status;
                          }));
  costs.latency_seconds = messages / kMessages;
  // The first is faster than the rest where a link lets bursts through, and
  // slower where a connection has to find its pace.
  TFRING_RETURN_IF_ERROR(step(bytes));
  TFRING_RETURN_IF_ERROR(await());
  TFRING_ASSIGN_OR_RETURN(const double transfer, LeastSeconds([&] {
                            const absl::Status status = step(bytes);
                            return status.ok() ? await() : status;
                          }));
  costs.seconds_per_byte =
      std::max(0.0, transfer - costs.latency_seconds) / bytes;
  return costs;
}

// Every rank takes the slowest rank's costs.
absl::Status TakeSlowest(const RingContext& context, Costs& costs) {
  static_assert(sizeof(Costs) % sizeof(double) == 0);
  RingBuffers buffers;
  buffers.input = buffers.output = &costs;
  buffers.count = sizeof(Costs) / sizeof(double);
  buffers.dtype = DataType::kFloat64;
  buffers.op = ReduceOp::kMax;
  return RingAllreduce(context, buffers);
}

}  // namespace

absl::StatusOr<Costs> MeasureCosts(const RingContext& context) {
  TFRING_ASSIGN_OR_RETURN(Costs costs,
                          MeasureOwnCosts(context, kTransferBytes,
                                          [] { return absl::OkStatus(); }));
  TFRING_RETURN_IF_ERROR(TakeSlowest(context, costs));
  return costs;
}

absl::StatusOr<Costs> MeasureOwnCosts(
    const RingContext& context, int64_t transfer_bytes,
    const std::function<absl::Status()>& await) {
  const Layout layout = Layout::Of(context.transport);
  const Kernels& kernels = context.kernels;
  Workspace workspace(kernels);
  TFRING_ASSIGN_OR_RETURN(std::byte* const sent,
                          workspace.AtLeast(2 * transfer_bytes));
  std::byte* const received = sent + transfer_bytes;
  const std::vector<std::byte> zeros(transfer_bytes);
  kernels.Upload(sent, zeros.data(), transfer_bytes);
  kernels.Upload(received, zeros.data(), transfer_bytes);

  const int64_t bytes =
      std::min(transfer_bytes, kTransferSegments * context.segment_bytes);
  const auto measure = [&](const RingContext& ring, int64_t ring_bytes) {
    return MeasureLink(ring, sent, received, ring_bytes, await);
  };
  Costs costs;
  if (layout.nodes == 1) {
    TFRING_ASSIGN_OR_RETURN(costs.within, measure(context, bytes));
  } else {
    const RingGrid grid(context, {layout.ranks_per_node, layout.nodes});
    TFRING_ASSIGN_OR_RETURN(costs.within, measure(*grid.rings()[0], bytes));
    TFRING_ASSIGN_OR_RETURN(costs.across, measure(context, bytes));
    TFRING_ASSIGN_OR_RETURN(
        costs.shared_across,
        measure(*grid.rings()[1],
                std::max<int64_t>(1, bytes / layout.ranks_per_node)));
  }
  const auto count = static_cast<int64_t>(transfer_bytes / sizeof(float));
  TFRING_ASSIGN_OR_RETURN(const double reduction, LeastSeconds([&] {
                            kernels.Reduce(sent, sent, received, count,
                                           DataType::kFloat32, ReduceOp::kSum);
                            const absl::Status status = kernels.Synchronize();
                            return status.ok() ? await() : status;
                          }));
  costs.reduce_seconds_per_byte = reduction / transfer_bytes;
  return costs;
}

Costs Slowest(absl::Span<const Costs> of_ranks) {
  const auto of_links = [](LinkCosts& slowest, const LinkCosts& link) {
    slowest.latency_seconds =
        std::max(slowest.latency_seconds, link.latency_seconds);
    slowest.seconds_per_byte =
        std::max(slowest.seconds_per_byte, link.seconds_per_byte);
  };
  Costs slowest = of_ranks.front();
  for (const Costs& costs : of_ranks) {
    of_links(slowest.within, costs.within);
    of_links(slowest.across, costs.across);
    of_links(slowest.shared_across, costs.shared_across);
    slowest.reduce_seconds_per_byte = std::max(slowest.reduce_seconds_per_byte,
                                               costs.reduce_seconds_per_byte);
  }
  return slowest;
}

}  // namespace tfring
