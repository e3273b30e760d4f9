// Allreduces of many ranks in simulated time, for docs/scaling.md: every plan,
// the cost model's predictions, and what `auto` chooses.  The algorithms, the
// measurement of costs and the model are real; the network is that of
// tests/cpp/simulated_job.h, and a reduction takes a simulated time.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/clusters.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_kernels.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {
namespace {

double Seconds(const absl::StatusOr<double>& seconds) {
  if (seconds.ok()) return *seconds;
  std::fprintf(stderr, "%s\n", seconds.status().ToString().c_str());
  std::exit(1);
}

void Run(const Cluster& cluster, int nodes) {
  SimulatedJob job(cluster.Network(nodes));
  const SimulatedKernels kernels([&](double seconds) { job.Sleep(seconds); },
                                 cluster.reduced_bytes_per_second,
                                 /*most_bytes=*/kSizes[2]);
  job.LeaveOut(kernels.shared_memory());
  const Layout layout{nodes, kRanksPerNode};

  Costs measured;
  const double measuring = Seconds(job.Run([&](Transport& transport) {
    Workspace scratch(kernels);
    const RingContext context{transport, kernels, cluster.segment_bytes,
                              scratch};
    const auto costs = MeasureCosts(context, job.clock());
    if (costs.ok()) measured = *costs;
    return costs.status();
  }));
  std::printf("\n%d ranks: %s (costs measured in %.1f ms)\n", job.size(),
              cluster.name, measuring * 1e3);
  std::printf("%10s  %-36s %10s %10s %10s %8s\n", "bytes", "plan", "ms",
              "measured", "typical", "streams");

  for (const int64_t bytes : kSizes) {
    const auto plans = Plans(layout, AllreduceAlgorithm::kAuto);
    const std::string chosen = Fastest(plans, layout, measured, bytes).Name();
    const Costs typical = Costs::Typical(kRanksPerNode);
    for (const AllreducePlan& plan : plans) {
      job.TakeStreams();
      const double seconds = Seconds(job.Run([&](Transport& transport) {
        return Allreduce(transport, kernels, cluster, plan, bytes);
      }));
      std::printf("%10ld  %-36s %10.3f %10.3f %10.3f %8d%s\n",
                  static_cast<long>(bytes), plan.Name().c_str(), seconds * 1e3,
                  PredictSeconds(plan, layout, measured, bytes) * 1e3,
                  PredictSeconds(plan, layout, typical, bytes) * 1e3,
                  job.TakeStreams(), plan.Name() == chosen ? "  auto" : "");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace tfring

// The numbers of nodes, of 8 ranks each, may be given.
int main(int argc, char** argv) {
  std::vector<int> nodes{8, 32, 64};
  if (argc > 1) nodes.clear();
  for (int i = 1; i < argc; ++i) nodes.push_back(std::atoi(argv[i]));
  for (const tfring::Cluster& cluster : tfring::kClusters) {
    for (const int number : nodes) {
      const bool has_spine = cluster.uplinks_per_leaf > 0;
      if (has_spine && number <= tfring::Cluster::kNodesPerLeaf) continue;
      tfring::Run(cluster, number);
    }
  }
}
