#include "tfring_ops/engine/negotiation/progress_tree.h"

#include <algorithm>
#include <set>

namespace tfring {
namespace {

// Makes `rank` a node of the tree of `ranks`: each rank in turn gets the next
// kFanOut ranks without a parent as its children.
void JoinTree(int rank, const std::vector<int>& ranks,
              ProgressNeighbors& neighbors) {
  constexpr int kFanOut = ProgressNeighbors::kFanOut;
  const int size = static_cast<int>(ranks.size());
  const int position = static_cast<int>(
      std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  if (position > 0) neighbors.parent = ranks[(position - 1) / kFanOut];
  const int begin = position * kFanOut + 1;
  for (int child = begin; child < std::min(begin + kFanOut, size); ++child) {
    neighbors.children.push_back(ranks[child]);
  }
}

}  // namespace

std::vector<int> ProgressNeighbors::All() const {
  std::vector<int> all = peers;
  all.insert(all.end(), children.begin(), children.end());
  if (parent >= 0) all.push_back(parent);
  return all;
}

ProgressNeighbors NeighborsOf(int rank, const std::vector<int>& nodes,
                              int max_peers) {
  ProgressNeighbors neighbors;
  const int size = static_cast<int>(nodes.size());
  if (size <= max_peers) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) neighbors.peers.push_back(peer);
    }
    return neighbors;
  }
  // The first rank of each machine represents it.
  std::vector<int> speakers, machine;
  std::set<int> known;
  for (int peer = 0; peer < size; ++peer) {
    if (known.insert(nodes[peer]).second) speakers.push_back(peer);
    if (nodes[peer] == nodes[rank]) machine.push_back(peer);
  }
  JoinTree(rank, machine, neighbors);
  if (machine[0] == rank) JoinTree(rank, speakers, neighbors);
  return neighbors;
}

}  // namespace tfring
