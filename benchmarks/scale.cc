// Allreduces of many ranks in simulated time, for docs/scaling.md: every plan,
// the cost model's predictions, and what `auto` chooses.  The algorithms, the
// measurement of costs and the model are real; the network is that of
// tests/cpp/simulated_job.h, and a reduction takes a simulated time.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_kernels.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"

namespace tfring {
namespace {

constexpr int kRanksPerNode = 8;
constexpr int64_t kSizes[] = {1 << 10, 1 << 20, 100 << 20};

// A kind of cluster.
struct Cluster {
  const char* name;
  SimulatedLink within, across;
  bool link_per_rank;
  double reduced_bytes_per_second;
  int64_t segment_bytes;
  // How many links lead from a leaf switch of kNodesPerLeaf nodes to the spine.
  // With 0 all nodes are on one switch.
  int uplinks_per_leaf = 0;
  uint32_t placement_seed = 0;
};
constexpr int kNodesPerLeaf = 16;
constexpr SimulatedLink kMemory{2e-6, 8e9}, kHundredGbits{20e-6, 12.5e9};
constexpr Cluster kClusters[] = {
    {"CPUs, 100 Gbit/s a node", kMemory, kHundredGbits, false, 10e9, 512 << 10},
    {"the same, 16 uplinks a leaf", kMemory, kHundredGbits, false, 10e9,
     512 << 10, 16},
    {"the same, 16 uplinks a leaf, nodes in random order", kMemory,
     kHundredGbits, false, 10e9, 512 << 10, 16, 1},
    {"the same, 4 uplinks a leaf", kMemory, kHundredGbits, false, 10e9,
     512 << 10, 4},
    {"the same, 4 uplinks a leaf, nodes in random order", kMemory,
     kHundredGbits, false, 10e9, 512 << 10, 4, 1},
    {"CPUs, 10 Gbit/s a node",
     kMemory,
     {40e-6, 1.25e9},
     false,
     10e9,
     512 << 10},
    {"GPUs, 100 Gbit/s each",
     {5e-6, 150e9},
     {15e-6, 12.5e9},
     true,
     500e9,
     16 << 20},
};

double Seconds(const absl::StatusOr<double>& seconds) {
  if (seconds.ok()) return *seconds;
  std::fprintf(stderr, "%s\n", seconds.status().ToString().c_str());
  std::exit(1);
}

void Run(const Cluster& cluster, int nodes) {
  SimulatedNetwork network;
  network.nodes = nodes;
  network.ranks_per_node = kRanksPerNode;
  network.within = cluster.within;
  network.across = cluster.across;
  network.link_per_rank = cluster.link_per_rank;
  network.nodes_per_leaf = cluster.uplinks_per_leaf > 0 ? kNodesPerLeaf : 0;
  network.uplinks_per_leaf = cluster.uplinks_per_leaf;
  network.placement_seed = cluster.placement_seed;
  SimulatedJob job(network);
  const SimulatedKernels kernels(job, cluster.reduced_bytes_per_second,
                                 /*most_bytes=*/kSizes[2]);
  const Layout layout{nodes, kRanksPerNode};

  const auto on_every_rank = [&](const auto& body) {
    return Seconds(job.Run([&](Transport& transport) {
      Workspace scratch(kernels);
      return body(
          RingContext{transport, kernels, cluster.segment_bytes, scratch});
    }));
  };
  Costs measured;
  const double measuring = on_every_rank([&](const RingContext& context) {
    const auto costs = MeasureCosts(context, job.clock());
    if (costs.ok()) measured = *costs;
    return costs.status();
  });
  std::printf("\n%d ranks: %s (costs measured in %.1f ms)\n", job.size(),
              cluster.name, measuring * 1e3);
  std::printf("%10s  %-36s %10s %10s %10s %8s\n", "bytes", "plan", "ms",
              "measured", "typical", "streams");

  for (const int64_t bytes : kSizes) {
    const auto plans = Plans(layout, AllreduceAlgorithm::kAuto);
    const std::string chosen = Fastest(plans, layout, measured, bytes).Name();
    const Costs typical = Costs::Typical(kRanksPerNode);
    for (const AllreducePlan& plan : plans) {
      RingBuffers buffers;
      buffers.input = buffers.output = kernels.shared_memory();
      buffers.count = bytes / 4;
      job.TakeStreams();
      const double seconds = on_every_rank([&](const RingContext& context) {
        return AllreduceByPlan(context).Run(plan, buffers);
      });
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
      if (has_spine && number <= tfring::kNodesPerLeaf) continue;
      tfring::Run(cluster, number);
    }
  }
}
