// The predicted time of an allreduce, by algorithm, and the choice of the best.
//
// The model is Hockney's: a message of b bytes takes latency + b *
// seconds_per_byte, and a reduction a time per byte besides.  It ignores that
// primitives overlap, so it is an upper bound where they do.
//
// Everything here is a pure function: ranks that agree on the costs make the
// same choice.
#ifndef TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MODEL_H_
#define TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfring_ops/base/types.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

struct LinkCosts {
  double latency_seconds = 0;
  double seconds_per_byte = 0;
};

struct Costs {
  LinkCosts within;         // between ranks of a node, all of them at once
  LinkCosts across;         // between nodes, one rank of each at once
  LinkCosts shared_across;  // between nodes, for each rank, all of them at once
  double reduce_seconds_per_byte = 0;

  // Shared memory, and 100 Gbit/s that one rank of a node can fill.
  static Costs Typical(int ranks_per_node);
};

// The places of the ranks.
struct Layout {
  // Nodes with different numbers of ranks are as many nodes of one rank: there
  // is no grid that fits them.
  static Layout Of(const Transport& transport);

  int ranks() const { return nodes * ranks_per_node; }

  int nodes = 1;
  int ranks_per_node = 1;
};

// An algorithm for an allreduce, and its shape.
struct AllreducePlan {
  // "ring", "hierarchical 8 x 16", ...: the name in messages.
  std::string Name() const;

  AllreduceAlgorithm algorithm = AllreduceAlgorithm::kRing;  // never kAuto
  std::vector<int> shape;  // of the grid of kHierarchical
};

// All that a layout allows, of `algorithm` if it is not kAuto.  Never empty: a
// ring is always possible, and takes the place of an impossible grid; with one
// rank it is the only plan.
std::vector<AllreducePlan> Plans(const Layout& layout,
                                 AllreduceAlgorithm algorithm);

double PredictSeconds(const AllreducePlan& plan, const Layout& layout,
                      const Costs& costs, int64_t bytes);

// The first of `plans` that is as fast as the fastest, or nearly so: for many
// bytes that is the ring, as its blocks stay in cache.
// REQUIRES: not empty.
const AllreducePlan& Fastest(const std::vector<AllreducePlan>& plans,
                             const Layout& layout, const Costs& costs,
                             int64_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MODEL_H_
