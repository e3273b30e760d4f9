// Hierarchical allreduce: each rank is at a point of a grid, and on one ring
// along each of its axes.  A reduce-scatter along the first axis leaves every
// rank a share, an allreduce of the share runs along the remaining axes, and an
// allgather along the first one brings all shares together.
//
// With the ranks of a node along the first axis, the shares of a node cross its
// link at the same time, while the node's ranks work on another part of the
// buffer: see Note [Parts of a grid] in grid_schedule.cc.  A ring takes
// 2 (n - 1) steps, an axis of n only its own 2 (n - 1): axes of 64 and 64 take
// 252 where a ring of 4096 takes 8190.  All axes of 2 are Rabenseifner's
// recursive halving and doubling.
//
// References: X. Jia et al., "Highly scalable deep learning training system
// with mixed-precision", arXiv:1807.11205 (2018), for nodes; C. Ying et al.,
// "Image classification at supercomputer scale", arXiv:1811.06992 (2018), for
// two axes.
#ifndef TFRING_OPS_ALGORITHMS_RING_HIERARCHICAL_H_
#define TFRING_OPS_ALGORITHMS_RING_HIERARCHICAL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// The rings of this rank.
class RingGrid {
 public:
  // `shape` has the number of ranks along each axis; their product is that of
  // `whole`, and the last is at least 2.  Ranks fill the first axis first, in
  // the order of the ring.
  // REQUIRES: `whole` outlives the grid.
  RingGrid(const RingContext& whole, const std::vector<int>& shape);

  // The rings hold references into the grid.
  RingGrid(const RingGrid&) = delete;
  RingGrid& operator=(const RingGrid&) = delete;

  // One ring per axis.
  const std::vector<std::unique_ptr<RingContext>>& rings() const {
    return rings_;
  }

 private:
  std::vector<std::unique_ptr<Transport>> groups_;
  std::vector<std::unique_ptr<RingContext>> rings_;
};

// output = reduction of every rank's input.  All ranks have the same bits: each
// element becomes whole at one rank of the last axis, and is copied from there.
absl::Status HierarchicalAllreduce(const RingGrid& grid, RingBuffers buffers);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_HIERARCHICAL_H_
