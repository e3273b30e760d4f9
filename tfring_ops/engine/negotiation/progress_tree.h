// The neighbors of a rank under a cached schedule: the places of the second
// table in cached_schedule.h.
//
// A few ranks are peers: each sends its own progress to all others, in one
// message.  More ranks form a tree.  A rank adds up its own progress and that
// of its children, and passes the sum to its parent.  The coordinator at the
// root then knows the progress of all, and sends it down again.  So a rank has
// few neighbors, however many ranks there are, and a message takes few hops.
//
// The ranks of a machine are a branch of the tree, so that few messages cross
// between machines.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_PROGRESS_TREE_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_PROGRESS_TREE_H_

#include <vector>

namespace tfring {

struct ProgressNeighbors {
  // The largest number of children that a rank has on its own machine, and on
  // other machines.
  static constexpr int kFanOut = 8;

  int parent = -1;  // none
  std::vector<int> peers;
  std::vector<int> children;

  std::vector<int> All() const;
};

// Returns the neighbors of `rank`, where rank i is on machine `nodes[i]`.  Up
// to `max_peers` ranks need no tree.
ProgressNeighbors NeighborsOf(int rank, const std::vector<int>& nodes,
                              int max_peers);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_PROGRESS_TREE_H_
