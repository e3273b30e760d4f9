// The tables of docs/scaling.md: what the cost model predicts for jobs of 8 to
// 4096 ranks, and what it chooses.
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tfring_ops/algorithms/adaptive/cost_model.h"

namespace tfring {
namespace {

constexpr int kRanksPerNode = 8;

struct Cluster {
  const char* what;
  Costs costs;
};

Costs WithLinks(LinkCosts within, LinkCosts across, double share) {
  Costs costs;
  costs.within = within;
  costs.across = across;
  costs.shared_across = {across.latency_seconds,
                         across.seconds_per_byte * share};
  costs.reduce_seconds_per_byte = 1 / 10e9;
  return costs;
}

std::vector<Cluster> Clusters() {
  Costs gpus = WithLinks({5e-6, 1 / 150e9}, {15e-6, 1 / 12.5e9}, 1);
  gpus.reduce_seconds_per_byte = 1 / 500e9;
  return {{"One link of 100 Gbit/s for a node of 8 ranks (20 us; within it "
           "shared memory, 2 us and 8 GB/s)",
           Costs::Typical(kRanksPerNode)},
          {"One link of 10 Gbit/s (40 us)",
           WithLinks({2e-6, 1 / 8e9}, {40e-6, 1 / 1.25e9}, kRanksPerNode)},
          {"A link of 100 Gbit/s for each of 8 GPUs (15 us; within a node 5 us "
           "and 150 GB/s)",
           gpus}};
}

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 0.1 ? "%.2f ms" : "%.0f ms",
                seconds * 1e3);
  return text;
}

// The prediction for the hierarchical plan of `axes`, if there is one.
std::string OfAxes(size_t axes, const std::vector<Plan>& plans,
                   const Layout& layout, const Costs& costs, int64_t bytes) {
  for (const Plan& plan : plans) {
    if (plan.algorithm != AllreduceAlgorithm::kHierarchical ||
        plan.shape.size() != axes) {
      continue;
    }
    return Milliseconds(PredictSeconds(plan, layout, costs, bytes));
  }
  return "";
}

void Print(const Cluster& cluster) {
  std::printf("**%s**\n\n", cluster.what);
  std::puts("| ranks | bytes | ring | nodes | 2-D rings | doubling | chosen |");
  std::puts("|---|---|---|---|---|---|---|");
  for (const int ranks : {8, 64, 512, 4096}) {
    const Layout layout{ranks / kRanksPerNode, kRanksPerNode};
    const auto plans = Plans(layout, AllreduceAlgorithm::kAuto);
    for (const auto& [name, bytes] :
         {std::pair<const char*, int64_t>{"1 KiB", 1 << 10},
          {"1 MiB", 1 << 20},
          {"100 MiB", 100 << 20}}) {
      const auto axes = [&](size_t count) {
        return OfAxes(count, plans, layout, cluster.costs, bytes);
      };
      const Plan& chosen = Fastest(plans, layout, cluster.costs, bytes);
      const auto seconds = [&](const Plan& plan) {
        return Milliseconds(PredictSeconds(plan, layout, cluster.costs, bytes));
      };
      const bool several_nodes = layout.nodes > 1;
      std::printf(
          "| %d | %s | %s | %s | %s | %s | %s, %s |\n", ranks, name,
          seconds(plans.front()).c_str(), several_nodes ? axes(2).c_str() : "",
          axes(several_nodes ? 3 : 2).c_str(), seconds(plans.back()).c_str(),
          chosen.Name().c_str(), seconds(chosen).c_str());
    }
  }
  std::puts("");
}

}  // namespace
}  // namespace tfring

int main() {
  for (const auto& cluster : tfring::Clusters()) tfring::Print(cluster);
}
