// The allreduce that the cost model says is the fastest, at every size.
#ifndef TFRING_OPS_ALGORITHMS_ADAPTIVE_ADAPTIVE_ALLREDUCE_H_
#define TFRING_OPS_ALGORITHMS_ADAPTIVE_ADAPTIVE_ALLREDUCE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/algorithms/ring/staged_allreduce.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/base/options.h"

namespace tfring {

// An allreduce by any plan.
class AllreduceByPlan {
 public:
  // REQUIRES: `context` outlives this.
  explicit AllreduceByPlan(const RingContext& context) : context_(context) {}

  // output = reduction of every rank's input, bit-identical on every rank.
  // Collective: every rank gives the same plan.
  // REQUIRES: `buffers` has no pieces.
  absl::Status Run(const AllreducePlan& plan, const RingBuffers& buffers);

 private:
  const RingContext& context_;
  std::map<std::vector<int>, std::unique_ptr<RingGrid>> grids_;  // by shape
};

// The source of the costs that the choice is based on.
enum class CostSource {
  // Measured at the first allreduce: two runs may choose differently.
  kMeasured,
  kTypical,  // depends only on the numbers of ranks and nodes
  kGiven,    // by a call of Use before the first allreduce
};

// Every rank makes the same calls, so every rank makes the same choices.
class AdaptiveAllreduce {
 public:
  // If `options` ask for deterministic results, costs are typical ones.
  // REQUIRES: `context` and `clock`, which measures costs, outlive this.
  AdaptiveAllreduce(const RingContext& context, const Options& options,
                    CostSource source, const Clock& clock = SteadyClock());

  // Returns the costs that all choices are based on.  The first call of this or
  // of Run measures them.  Collective.
  absl::StatusOr<Costs> Measured();
  // Uses `costs`, which were measured over the same links.
  void Use(const Costs& costs);

  // output = reduction of every rank's input, bit-identical on every rank.
  // Collective.
  absl::Status Run(const RingBuffers& buffers);

  // Run for the data of `staging`: see StagedRingAllreduce.
  absl::Status RunStaged(const RingBuffers& buffers,
                         absl::Span<std::byte> stage, Staging& staging);

 private:
  absl::Status Prepare();
  const AllreducePlan& PlanFor(int64_t bytes);
  const AllreducePlan& PlanFor(const RingBuffers& buffers);
  std::string Description();

  const RingContext& context_;
  AllreduceByPlan by_plan_;
  const Layout layout_;
  const std::vector<AllreducePlan> plans_;
  const CostSource source_;
  const Clock& clock_;
  const bool verbose_;
  bool is_prepared_ = false;
  Costs costs_;
  std::map<int64_t, const AllreducePlan*> chosen_;  // by bytes
};

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_ADAPTIVE_ADAPTIVE_ALLREDUCE_H_
