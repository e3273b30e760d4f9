#include "tfring_ops/algorithms/adaptive/cost_measurement.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

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
// Bytes that a node sends over its link to measure the bandwidth.
constexpr int64_t kTransferBytes = 1 << 20;
// Enough where segments are so small that it would take long.
constexpr int64_t kTransferSegments = 32;

// The least time of some runs: what else the machine does only adds to it.
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

// `memory` is of 2 * kTransferBytes.
absl::StatusOr<LinkCosts> MeasureLink(const RingContext& ring,
                                      std::byte* memory, int64_t bytes) {
  const RingOrder& order = ring.order;
  if (order.size() == 1) return LinkCosts();
  const auto step = [&](int64_t step_bytes) {
    return SendRecv(ring, order.Before(order.size() - 1), memory,
                    order.Before(1), memory + kTransferBytes, step_bytes);
  };
  // Until all are there.
  for (int i = 0; i < order.size(); ++i) {
    TFRING_RETURN_IF_ERROR(step(kMessageBytes));
  }
  LinkCosts costs;
  TFRING_ASSIGN_OR_RETURN(const double messages, LeastSeconds([&] {
                            absl::Status status;
                            for (int i = 0; i < kMessages && status.ok(); ++i) {
                              status = step(kMessageBytes);
                            }
                            return status;
                          }));
  costs.latency_seconds = messages / kMessages;
  // The first is faster than the rest where a link lets bursts through, and
  // slower where a connection has to find its pace.
  TFRING_RETURN_IF_ERROR(step(bytes));
  TFRING_ASSIGN_OR_RETURN(const double transfer,
                          LeastSeconds([&] { return step(bytes); }));
  costs.seconds_per_byte =
      std::max(0.0, transfer - costs.latency_seconds) / bytes;
  return costs;
}

// Every rank's costs become those of the slowest.
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
  const Layout layout = Layout::Of(context.transport);
  Workspace workspace(context.kernels);
  TFRING_ASSIGN_OR_RETURN(std::byte* const memory,
                          workspace.AtLeast(2 * kTransferBytes));
  std::memset(memory, 0, 2 * kTransferBytes);

  const int64_t bytes =
      std::min(kTransferBytes, kTransferSegments * context.segment_bytes);
  Costs costs;
  if (layout.nodes == 1) {
    TFRING_ASSIGN_OR_RETURN(costs.within, MeasureLink(context, memory, bytes));
  } else {
    const RingGrid grid(context, {layout.ranks_per_node, layout.nodes});
    TFRING_ASSIGN_OR_RETURN(costs.within,
                            MeasureLink(*grid.rings()[0], memory, bytes));
    TFRING_ASSIGN_OR_RETURN(costs.across, MeasureLink(context, memory, bytes));
    TFRING_ASSIGN_OR_RETURN(
        costs.shared_across,
        MeasureLink(*grid.rings()[1], memory,
                    std::max<int64_t>(1, bytes / layout.ranks_per_node)));
  }
  constexpr int64_t kCount = kTransferBytes / sizeof(float);
  TFRING_ASSIGN_OR_RETURN(const double reduction, LeastSeconds([&] {
                            context.kernels.Reduce(
                                memory, memory, memory + kTransferBytes, kCount,
                                DataType::kFloat32, ReduceOp::kSum);
                            return context.kernels.Synchronize();
                          }));
  costs.reduce_seconds_per_byte = reduction / kTransferBytes;
  TFRING_RETURN_IF_ERROR(TakeSlowest(context, costs));
  return costs;
}

}  // namespace tfring
