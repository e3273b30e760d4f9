// The predicted time of an allreduce, by algorithm, and the choice of the best.
//
// The model is Hockney's: a message of b bytes takes latency + b *
// seconds_per_byte, and a reduction a time per byte besides.  Of the steps of a
// ring that overlap the longest one counts, and a grid is followed move by
// move.
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
  LinkCosts within;  // between ranks of a node while all communicate
  // A ring over all ranks of several nodes: the mean latency of its steps,
  // because a rank waits for its predecessor and not for the slowest link, and
  // the bandwidth of a link between nodes.
  LinkCosts across;
  // Between nodes, per rank, while all of them communicate.
  LinkCosts shared_across;
  double reduce_seconds_per_byte = 0;
  int64_t segment_bytes = 512 << 10;  // see RingContext

  // Costs of shared memory, and of a link of 100 Gbit/s that one rank of a node
  // can saturate.
  static Costs Typical(int ranks_per_node);
};

// How ranks are placed on nodes.
struct Layout {
  // Nodes with different numbers of ranks count as one node per rank, because
  // no grid fits them.
  static Layout Of(const Transport& transport);

  int ranks() const { return nodes * ranks_per_node; }

  int nodes = 1;
  int ranks_per_node = 1;
};

// An algorithm for an allreduce, and its shape.
struct AllreducePlan {
  // The name in messages, such as "ring" or "hierarchical 8 x 16".
  std::string Name() const;

  AllreduceAlgorithm algorithm = AllreduceAlgorithm::kRing;  // never kAuto
  std::vector<int> shape;  // the shape of the grid, for kHierarchical
};

// Returns the plans that a layout allows: those of `algorithm`, unless it is
// kAuto.  The ones that are preferred, where the model sees no difference, come
// first.  There is always one, because a ring is possible everywhere and
// replaces an impossible grid.  With one rank the ring is the only plan.
std::vector<AllreducePlan> Plans(const Layout& layout,
                                 AllreduceAlgorithm algorithm);

double PredictSeconds(const AllreducePlan& plan, const Layout& layout,
                      const Costs& costs, int64_t bytes);

// Returns the first of `plans` that is within a margin of the fastest.
// REQUIRES: `plans` is not empty.
const AllreducePlan& Fastest(const std::vector<AllreducePlan>& plans,
                             const Layout& layout, const Costs& costs,
                             int64_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_ADAPTIVE_COST_MODEL_H_
