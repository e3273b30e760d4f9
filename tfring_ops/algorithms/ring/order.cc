#include "tfring_ops/algorithms/ring/order.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tfring {

RingOrder RingOrder::ByNode(const Transport& transport) {
  std::map<int, int> lowest_ranks;  // the lowest rank of each node
  for (int rank = 0; rank < transport.size(); ++rank) {
    lowest_ranks.emplace(transport.node_of(rank), rank);
  }
  RingOrder order;
  for (int rank = 0; rank < transport.size(); ++rank) {
    order.ranks.push_back(rank);
  }
  const auto lowest_rank = [&](int rank) {
    return lowest_ranks[transport.node_of(rank)];
  };
  std::sort(order.ranks.begin(), order.ranks.end(), [&](int a, int b) {
    return std::pair(lowest_rank(a), a) < std::pair(lowest_rank(b), b);
  });
  while (order.ranks[order.place] != transport.rank()) ++order.place;
  return order;
}

int RingOrder::StepsFrom(int rank) const {
  int steps = 0;
  while (Before(steps) != rank) ++steps;
  return steps;
}

}  // namespace tfring
