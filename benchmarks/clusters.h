// The clusters of benchmarks/scale.cc and benchmarks/scale_smpi.cc, and an
// allreduce on one of their ranks.
#ifndef TFRING_BENCHMARKS_CLUSTERS_H_
#define TFRING_BENCHMARKS_CLUSTERS_H_

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_kernels.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

inline constexpr int kRanksPerNode = 8;
inline constexpr int64_t kSizes[] = {1 << 10, 1 << 20, 100 << 20};

// A kind of cluster.
struct Cluster {
  SimulatedNetwork Network(int nodes) const {
    SimulatedNetwork network;
    network.nodes = nodes;
    network.ranks_per_node = kRanksPerNode;
    network.within = within;
    network.across = across;
    network.link_per_rank = link_per_rank;
    network.nodes_per_leaf = uplinks_per_leaf > 0 ? kNodesPerLeaf : 0;
    network.uplinks_per_leaf = uplinks_per_leaf;
    network.placement_seed = placement_seed;
    return network;
  }

  static constexpr int kNodesPerLeaf = 16;

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
inline constexpr SimulatedLink kMemory{2e-6, 8e9}, kHundredGbits{20e-6, 12.5e9};
inline constexpr Cluster kClusters[] = {
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

// Sums `bytes` of float32 by `plan`.  A small sum is real: returns Internal if
// an element is wrong.  Collective.
inline absl::Status Allreduce(Transport& transport,
                              const SimulatedKernels& kernels,
                              const Cluster& cluster, const AllreducePlan& plan,
                              int64_t bytes) {
  const bool is_real = bytes <= SimulatedKernels::kSmallBytes;
  // The scratch of a real sum, some segments, has to be small, too.
  const int64_t segment_bytes =
      is_real ? SimulatedKernels::kSmallBytes / 4 : cluster.segment_bytes;
  Workspace scratch(kernels);
  const RingContext context{transport, kernels, segment_bytes, scratch};
  const int64_t count = bytes / 4, size = transport.size();
  std::vector<float> values(is_real ? count : 0);
  std::iota(values.begin(), values.end(), static_cast<float>(transport.rank()));
  RingBuffers buffers;
  buffers.output = values.data();
  if (!is_real) buffers.output = kernels.shared_memory().data();
  buffers.input = buffers.output;
  buffers.count = count;
  TFRING_RETURN_IF_ERROR(AllreduceByPlan(context).Run(plan, buffers));
  for (size_t i = 0; i < values.size(); ++i) {
    // Exact, because integers below 2^24 are.
    const auto sum = static_cast<float>(size * (size - 1) / 2 + size * i);
    if (values[i] == sum) continue;
    return absl::InternalError(absl::StrCat("rank ", transport.rank(), ", ",
                                            plan.Name(), ": element ", i,
                                            " is ", values[i], ", not ", sum));
  }
  return absl::OkStatus();
}

}  // namespace tfring

#endif  // TFRING_BENCHMARKS_CLUSTERS_H_
