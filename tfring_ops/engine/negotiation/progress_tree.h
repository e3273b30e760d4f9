// The neighbors of a rank under a cached schedule: the places of the second
// table in cached_schedule.h.
//
// A few ranks are one another's peers: each tells all peers of its own
// progress, in one message one way.  More ranks than that form a tree.  A rank
// adds up the progress of its children and its own, and passes it to its
// parent; the coordinator at the root so knows the progress of all, which goes
// back down.  A rank then has a few neighbors, however many ranks there are,
// and a message has few ways to go.
//
// The ranks of a machine are a branch of the tree, so that few messages cross
// between machines.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_PROGRESS_TREE_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_PROGRESS_TREE_H_

#include <vector>

namespace tfring {

struct ProgressNeighbors {
  // In a tree a rank has at most as many children on its own machine, and as
  // many elsewhere.
  static constexpr int kFanOut = 8;

  int parent = -1;  // none
  std::vector<int> peers;
  std::vector<int> children;

  std::vector<int> All() const;
};

// Returns the neighbors of `rank`, where rank i is on machine `nodes[i]`.  At
// most `max_peers` ranks do without a tree.
ProgressNeighbors NeighborsOf(int rank, const std::vector<int>& nodes,
                              int max_peers);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_PROGRESS_TREE_H_
