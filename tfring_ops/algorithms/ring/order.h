// The order in which a ring visits the ranks.
//
// The ranks of a node are neighbours, wherever each rank has been started: so
// each node's link is crossed once in each direction.
#ifndef TFRING_OPS_ALGORITHMS_RING_ORDER_H_
#define TFRING_OPS_ALGORITHMS_RING_ORDER_H_

#include <vector>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Only `place` differs between ranks.
struct RingOrder {
  // Visits the nodes in the order of their lowest ranks, and the ranks of a
  // node in their own order.
  static RingOrder ByNode(const Transport& transport);

  int size() const { return static_cast<int>(ranks.size()); }

  // Returns the rank that is `steps` steps before this one in the ring: 1 is
  // the previous neighbour, size() - 1 the next.
  // REQUIRES: 0 <= steps <= size().
  int Before(int steps) const {
    return ranks[(place + size() - steps) % size()];
  }

  // The number of steps that the ring takes from `rank` to this one.
  int StepsFrom(int rank) const;

  std::vector<int> ranks;  // in the order in which the ring visits them
  int place = 0;           // the index of this rank in `ranks`
};

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_ORDER_H_
