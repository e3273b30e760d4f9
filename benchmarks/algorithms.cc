// The algorithms of an allreduce beside what the cost model predicts, with the
// ranks of one node as threads: algorithms [ranks] [rounds].
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRingBytes = 512 << 10;
constexpr int64_t kCallsPerRound = 5;

absl::Status Reduce(const Plan& plan, const RingContext& context,
                    const RingBuffers& buffers) {
  switch (plan.algorithm) {
    case AllreduceAlgorithm::kRecursiveDoubling:
      return RecursiveDoublingAllreduce(context, buffers);
    case AllreduceAlgorithm::kHierarchical:
      return HierarchicalAllreduce(RingGrid(context, plan.shape), buffers);
    default:
      return RingAllreduce(context, buffers);
  }
}

void RunRank(Transport& transport, int rounds) {
  const bool first = transport.rank() == 0;
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), Options().segment_bytes,
                            scratch};
  const Layout layout = Layout::Of(transport);
  const std::vector<Plan> plans = Plans(layout, AllreduceAlgorithm::kAuto);
  std::vector<float> data(64 << 18);
  for (int64_t bytes = 64; bytes <= 64 << 20; bytes *= 16) {
    const Costs costs = MeasureCosts(context).value();
    std::vector<double> least(plans.size(), 1e9);
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < plans.size(); ++i) {
        const Clock::time_point begin = Clock::now();
        for (int call = 0; call < kCallsPerRound; ++call) {
          const RingBuffers buffers{data.data(), data.data(), bytes / 4,
                                    DataType::kFloat32, ReduceOp::kMax};
          if (!Reduce(plans[i], context, buffers).ok()) std::abort();
        }
        const std::chrono::duration<double> taken = Clock::now() - begin;
        least[i] = std::min(least[i], taken.count() / kCallsPerRound);
      }
    }
    if (!first) continue;
    const Plan& chosen = Fastest(plans, layout, costs, bytes);
    for (size_t i = 0; i < plans.size(); ++i) {
      std::printf("%9lld bytes  %-24s %10.1f us, predicted %10.1f us%s\n",
                  static_cast<long long>(bytes), plans[i].Name().c_str(),
                  least[i] * 1e6,
                  PredictSeconds(plans[i], layout, costs, bytes) * 1e6,
                  &plans[i] == &chosen ? ", chosen" : "");
    }
  }
}

}  // namespace
}  // namespace tfring

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  const auto transports = tfring::MakeTransports(tfring::Medium::kSharedMemory,
                                                 ranks, tfring::kRingBytes);
  tfring::OnThreads(
      ranks, [&](int rank) { tfring::RunRank(*transports[rank], rounds); });
}
