#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

std::string Text(const LinkCosts& link) {
  return absl::StrFormat("%.1f us and %.2f GB/s", link.latency_seconds * 1e6,
                         1e-9 / link.seconds_per_byte);
}

}  // namespace

AdaptiveAllreduce::AdaptiveAllreduce(const RingContext& context,
                                     const Options& options, CostSource source,
                                     const Clock& clock)
    : context_(context),
      by_plan_(context),
      layout_(Layout::Of(context.transport)),
      plans_(Plans(layout_, options.allreduce)),
      source_(options.deterministic ? CostSource::kTypical : source),
      clock_(clock),
      verbose_(options.verbose && layout_.ranks() > 1 &&
               context.transport.rank() == 0),
      costs_(Costs::Typical(layout_.ranks_per_node)) {
  costs_.segment_bytes = context.segment_bytes;
}

absl::StatusOr<Costs> AdaptiveAllreduce::Measured() {
  TFRING_RETURN_IF_ERROR(Prepare());
  return costs_;
}

void AdaptiveAllreduce::Use(const Costs& costs) {
  costs_ = costs;
  is_prepared_ = true;
  if (verbose_ && source_ == CostSource::kGiven) {
    LogInfo(context_.transport.rank(), Description());
  }
}

absl::Status AdaptiveAllreduce::Run(const RingBuffers& buffers) {
  TFRING_RETURN_IF_ERROR(Prepare());
  const AllreducePlan& plan = PlanFor(buffers);
  if (buffers.pieces.empty() || plan.algorithm == AllreduceAlgorithm::kRing) {
    return by_plan_.Run(plan, buffers);
  }
  // Only a ring reduces several pieces as one.
  for (const RingPiece& piece : buffers.pieces) {
    RingBuffers alone = buffers;
    alone.pieces = {};
    alone.input = piece.input;
    alone.output = piece.output;
    alone.count = piece.count;
    TFRING_RETURN_IF_ERROR(by_plan_.Run(PlanFor(alone), alone));
  }
  return absl::OkStatus();
}

absl::Status AdaptiveAllreduce::RunStaged(const RingBuffers& buffers,
                                          absl::Span<std::byte> stage,
                                          Staging& staging) {
  TFRING_RETURN_IF_ERROR(Prepare());
  const AllreducePlan& plan = PlanFor(buffers);
  if (plan.algorithm == AllreduceAlgorithm::kRing) {
    return StagedRingAllreduce(context_, buffers, stage, staging);
  }
  const int64_t stage_count = DownToBorder(
      static_cast<int64_t>(stage.size()) / SizeInBytes(buffers.dtype),
      buffers.dtype);
  RingBuffers block = buffers;
  block.input = block.output = stage.data();
  for (int64_t first = 0; first < buffers.count; first += stage_count) {
    block.count = std::min(stage_count, buffers.count - first);
    staging.Load({first, block.count}, stage.data());
    TFRING_RETURN_IF_ERROR(context_.kernels.Synchronize());
    TFRING_RETURN_IF_ERROR(by_plan_.Run(plan, block));
    staging.Store({first, block.count}, stage.data());
    TFRING_RETURN_IF_ERROR(context_.kernels.Synchronize());
  }
  return absl::OkStatus();
}

const AllreducePlan& AdaptiveAllreduce::PlanFor(int64_t bytes) {
  // A prediction for a thousand ranks takes a tenth of a millisecond, so sizes
  // whose three highest bits are equal share a choice.
  int64_t unit = 1;
  while (bytes / unit >= 8) unit *= 2;
  bytes -= bytes % unit;
  const AllreducePlan*& plan = chosen_[bytes];
  if (plan == nullptr) plan = &Fastest(plans_, layout_, costs_, bytes);
  return *plan;
}

const AllreducePlan& AdaptiveAllreduce::PlanFor(const RingBuffers& buffers) {
  return PlanFor(buffers.count * SizeInBytes(buffers.dtype));
}

absl::Status AllreduceByPlan::Run(const AllreducePlan& plan,
                                  const RingBuffers& buffers) {
  switch (plan.algorithm) {
    case AllreduceAlgorithm::kRecursiveDoubling:
      return RecursiveDoublingAllreduce(context_, buffers);
    case AllreduceAlgorithm::kHierarchical: {
      std::unique_ptr<RingGrid>& grid = grids_[plan.shape];
      if (grid == nullptr) {
        grid = std::make_unique<RingGrid>(context_, plan.shape);
      }
      return HierarchicalAllreduce(*grid, buffers);
    }
    case AllreduceAlgorithm::kAuto:
    case AllreduceAlgorithm::kRing:
      break;
  }
  return RingAllreduce(context_, buffers);
}

absl::Status AdaptiveAllreduce::Prepare() {
  if (is_prepared_) return absl::OkStatus();
  if (plans_.size() > 1 && source_ == CostSource::kMeasured) {
    TFRING_ASSIGN_OR_RETURN(costs_, MeasureCosts(context_, clock_));
  }
  if (verbose_) LogInfo(context_.transport.rank(), Description());
  is_prepared_ = true;
  return absl::OkStatus();
}

std::string AdaptiveAllreduce::Description() {
  std::string text =
      absl::StrCat("allreduce of ", layout_.ranks(), " ranks on ",
                   layout_.nodes, layout_.nodes == 1 ? " node:" : " nodes:");
  const AllreducePlan* before = nullptr;
  for (int64_t bytes = 1; bytes <= int64_t{1} << 30; bytes *= 2) {
    const AllreducePlan& plan = PlanFor(bytes);
    if (&plan == before) continue;
    absl::StrAppend(&text, before == nullptr ? " " : ", ", plan.Name());
    if (before != nullptr) absl::StrAppend(&text, " from ", bytes, " bytes");
    before = &plan;
  }
  if (plans_.size() == 1) return text;
  absl::StrAppend(
      &text, source_ == CostSource::kTypical ? "; supposed: " : "; measured: ");
  if (layout_.ranks_per_node > 1) {
    absl::StrAppend(&text, Text(costs_.within), " within a node, ");
  }
  if (layout_.nodes > 1) {
    absl::StrAppend(&text, Text(costs_.across), " between nodes, ",
                    Text(costs_.shared_across), " for each of their ranks, ");
  }
  absl::StrAppendFormat(&text, "%.2f GB/s of reduction",
                        1e-9 / costs_.reduce_seconds_per_byte);
  return text;
}

}  // namespace tfring
