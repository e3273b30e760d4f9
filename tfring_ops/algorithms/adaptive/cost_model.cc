#include "tfring_ops/algorithms/adaptive/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"

namespace tfring {
namespace {

// The model is too inexact to distinguish times that are closer.
constexpr double kMargin = 1.08;

// Writes `number` as a product of `count` factors that are as equal as
// possible.
std::vector<int> NearlyEqualFactors(int number, int count) {
  std::vector<int> factors;
  for (; count > 1; --count) {
    int factor = 1;
    const double root = std::pow(number, 1.0 / count) + 1e-6;
    for (int divisor = 1; divisor <= root; ++divisor) {
      if (number % divisor == 0) factor = divisor;
    }
    factors.push_back(factor);
    number /= factor;
  }
  factors.push_back(number);
  return factors;
}

std::vector<int> PrimeFactors(int number) {
  std::vector<int> factors;
  for (int divisor = 2; number > 1; ++divisor) {
    for (; number % divisor == 0; number /= divisor) factors.push_back(divisor);
  }
  return factors;
}

// Returns grids whose first axis has the ranks of a node, if there are several
// nodes, and whose other axes have the nodes: as many axes as there are prime
// factors, then three, two and one.  More axes have fewer steps, for the same
// bytes.
std::vector<std::vector<int>> Shapes(const Layout& layout) {
  const bool several_nodes = layout.nodes > 1;
  const int others = several_nodes ? layout.nodes : layout.ranks_per_node;
  std::vector<std::vector<int>> shapes;
  for (const std::vector<int>& factors :
       {PrimeFactors(others), NearlyEqualFactors(others, 3),
        NearlyEqualFactors(others, 2), NearlyEqualFactors(others, 1)}) {
    std::vector<int> shape;
    if (several_nodes) shape.push_back(layout.ranks_per_node);
    shape.insert(shape.end(), factors.begin(), factors.end());
    shape.erase(std::remove(shape.begin(), shape.end(), 1), shape.end());
    if (shape.size() > 1 &&
        std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) {
      shapes.push_back(shape);
    }
  }
  return shapes;
}

// The links that the ranks' messages use at the same time.
struct Path {
  double latency_seconds;
  // The costs of the link that is busy for longest, and of one message.
  double seconds_per_byte, own_seconds_per_byte;
  // In a job of one node the cores that reduce have to copy, too.
  bool overlaps;
};

Path Within(const Layout& layout, const Costs& costs) {
  const LinkCosts& link = costs.within;
  return {link.latency_seconds, link.seconds_per_byte, link.seconds_per_byte,
          layout.nodes > 1};
}

// Ranks of different nodes, while all ranks of a node use its link.
Path Across(const Costs& costs) {
  const LinkCosts& shared = costs.shared_across;
  return {shared.latency_seconds, shared.seconds_per_byte,
          std::min(shared.seconds_per_byte, costs.across.seconds_per_byte),
          true};
}

// All ranks: a message takes mostly links within nodes.
Path Around(const Layout& layout, const Costs& costs) {
  if (layout.nodes == 1) return Within(layout, costs);
  const LinkCosts &within = costs.within, &across = costs.across;
  const int n = layout.ranks_per_node;
  if (n == 1) {
    return {across.latency_seconds, across.seconds_per_byte,
            across.seconds_per_byte, true};
  }
  return {std::max(within.latency_seconds, across.latency_seconds),
          std::max(within.seconds_per_byte, across.seconds_per_byte),
          ((n - 1) * within.seconds_per_byte + across.seconds_per_byte) / n,
          true};
}

// Returns the time from one primitive of a ring to the next.  With long
// messages the busiest link is never idle; otherwise a rank waits for a message
// from its beginning.  A chunk of several segments is on the wire while it is
// reduced.
double StepSeconds(const Path& path, const Costs& costs, double chunk_bytes,
                   bool reduces) {
  double segments = 1;
  if (path.overlaps) {
    segments = std::max(segments,
                        chunk_bytes / static_cast<double>(costs.segment_bytes));
  }
  const double reduction =
      reduces ? chunk_bytes * costs.reduce_seconds_per_byte : 0;
  const double wire = chunk_bytes * path.own_seconds_per_byte;
  return std::max({chunk_bytes * path.seconds_per_byte, reduction,
                   path.latency_seconds + (wire + reduction) / segments});
}

double RingSeconds(const Path& path, const Costs& costs, int n, double bytes) {
  return (n - 1) * (StepSeconds(path, costs, bytes / n, /*reduces=*/true) +
                    StepSeconds(path, costs, bytes / n, /*reduces=*/false));
}

double DoublingSeconds(const Layout& layout, const Costs& costs,
                       int64_t bytes) {
  const int doublers = Doubling(0, layout.ranks()).doublers();
  const int surplus = layout.ranks() - doublers;
  // Groups of up to this many doublers are within a node: it divides the number
  // of doublers before the first rank of each node.
  int together = doublers;
  for (int place = layout.ranks_per_node;
       place < layout.ranks() && together > 1; place += layout.ranks_per_node) {
    together =
        std::gcd(together, place <= 2 * surplus ? place / 2 : place - surplus);
  }
  const int64_t blocks = std::max<int64_t>(
      1, (bytes + kDoublingBlockBytes - 1) / kDoublingBlockBytes);
  const double block_bytes = static_cast<double>(bytes) / blocks;
  const Path near = Within(layout, costs);
  const Path far = layout.nodes > 1 ? Across(costs) : near;
  // While a link carries the blocks of all ranks of a node, the first of them
  // reduce theirs.
  const auto message = [&](const Path& path, double reduction) {
    return std::max(block_bytes * path.seconds_per_byte,
                    path.latency_seconds +
                        block_bytes * path.own_seconds_per_byte + reduction);
  };
  const double reduction = block_bytes * costs.reduce_seconds_per_byte;
  double seconds = 0;
  for (int distance = 1; distance < doublers; distance *= 2) {
    seconds += message(2 * distance <= together ? near : far, reduction);
  }
  if (surplus > 0) {
    const bool splits_a_pair =
        layout.ranks_per_node % 2 == 1 && layout.ranks_per_node < 2 * surplus;
    const Path& path = splits_a_pair ? far : near;
    seconds += message(path, reduction) + message(path, 0);
  }
  return blocks * seconds;
}

// See Note [Parts of a grid] in ring/hierarchical.cc.
double GridSeconds(const std::vector<int>& shape, const Layout& layout,
                   const Costs& costs, int64_t bytes) {
  const bool first_is_node = layout.nodes > 1 && layout.ranks_per_node > 1;
  const Path within = Within(layout, costs), across = Across(costs);
  const int64_t part_bytes = GridPartBytes(shape, bytes, costs.segment_bytes);
  const int64_t count =
      std::max<int64_t>(1, (bytes + part_bytes - 1) / part_bytes);
  const auto parts = static_cast<double>(count);
  double length = static_cast<double>(bytes) / parts;
  // A part needs taken[0] seconds for its moves along the first axis and
  // taken[1] for those along the other axes.  The busiest link carries it for
  // busy[0] and busy[1] seconds of these.
  double taken[2] = {}, busy[2] = {};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool is_within = layout.nodes == 1 || (first_is_node && axis == 0);
    const Path& path = is_within ? within : across;
    const int n = shape[axis];
    taken[axis > 0] += RingSeconds(path, costs, n, length);
    length /= n;
    busy[axis > 0] += 2 * (n - 1) * length * path.seconds_per_byte;
  }
  // Axes on the same links do not gain from working at the same time.
  if (!first_is_node) return parts * (taken[0] + taken[1]);
  // GridPartsBetween parts are between nodes at a time.
  const auto at_a_time = static_cast<double>(GridPartsBetween(count));
  const double of_latencies =
      taken[0] + taken[1] * (1 + (parts - 1) / at_a_time);
  // Links within nodes that are always busy hide some of the way between nodes;
  // the simulation shows how much.
  const double of_first =
      parts * busy[0] + taken[1] * std::min(1.0, 0.5 + 3 / parts);
  const double of_others = taken[0] + taken[1] + (parts - 1) * busy[1];
  return std::max({of_latencies, of_first, of_others});
}

}  // namespace

Costs Costs::Typical(int ranks_per_node) {
  Costs costs;
  constexpr double kLatencySeconds = 20e-6, kBytesPerSecond = 12.5e9;
  costs.within = {2e-6, 1 / 8e9};
  // One step in `ranks_per_node` crosses to another node.
  costs.across = {
      ((ranks_per_node - 1) * costs.within.latency_seconds + kLatencySeconds) /
          ranks_per_node,
      1 / kBytesPerSecond};
  costs.shared_across = {kLatencySeconds, ranks_per_node / kBytesPerSecond};
  costs.reduce_seconds_per_byte = 1 / 10e9;
  return costs;
}

Layout Layout::Of(const Transport& transport) {
  std::map<int, int> ranks_of_node;
  for (int rank = 0; rank < transport.size(); ++rank) {
    ++ranks_of_node[transport.node_of(rank)];
  }
  const int ranks_per_node = ranks_of_node.begin()->second;
  for (const auto& [node, ranks] : ranks_of_node) {
    if (ranks != ranks_per_node) return {transport.size(), 1};
  }
  return {static_cast<int>(ranks_of_node.size()), ranks_per_node};
}

std::string AllreducePlan::Name() const {
  const std::string name = tfring::Name(algorithm);
  return shape.empty() ? name
                       : absl::StrCat(name, " ", absl::StrJoin(shape, " x "));
}

std::vector<AllreducePlan> Plans(const Layout& layout,
                                 AllreduceAlgorithm algorithm) {
  const auto wanted = [&](AllreduceAlgorithm one) {
    return algorithm == one || algorithm == AllreduceAlgorithm::kAuto;
  };
  std::vector<AllreducePlan> plans;
  if (wanted(AllreduceAlgorithm::kHierarchical)) {
    for (const std::vector<int>& shape : Shapes(layout)) {
      plans.push_back({AllreduceAlgorithm::kHierarchical, shape});
    }
  }
  if (wanted(AllreduceAlgorithm::kRing)) {
    // Within one node, and between nodes of one rank, all links are alike, and
    // a ring keeps its blocks in cache.
    const bool have_two_kinds_of_links =
        layout.nodes > 1 && layout.ranks_per_node > 1;
    plans.insert(have_two_kinds_of_links ? plans.end() : plans.begin(),
                 AllreducePlan());
  }
  if (wanted(AllreduceAlgorithm::kRecursiveDoubling)) {
    plans.push_back({AllreduceAlgorithm::kRecursiveDoubling, {}});
  }
  if (plans.empty() || layout.ranks() == 1) return {AllreducePlan()};
  return plans;
}

double PredictSeconds(const AllreducePlan& plan, const Layout& layout,
                      const Costs& costs, int64_t bytes) {
  switch (plan.algorithm) {
    case AllreduceAlgorithm::kRecursiveDoubling:
      return DoublingSeconds(layout, costs, bytes);
    case AllreduceAlgorithm::kHierarchical:
      return GridSeconds(plan.shape, layout, costs, bytes);
    case AllreduceAlgorithm::kAuto:
    case AllreduceAlgorithm::kRing:
      break;
  }
  return RingSeconds(Around(layout, costs), costs, layout.ranks(),
                     static_cast<double>(bytes));
}

const AllreducePlan& Fastest(const std::vector<AllreducePlan>& plans,
                             const Layout& layout, const Costs& costs,
                             int64_t bytes) {
  const auto seconds = [&](const AllreducePlan& plan) {
    return PredictSeconds(plan, layout, costs, bytes);
  };
  double least = seconds(plans.front());
  for (const AllreducePlan& plan : plans) {
    least = std::min(least, seconds(plan));
  }
  return *std::find_if(plans.begin(), plans.end(),
                       [&](const AllreducePlan& plan) {
                         return seconds(plan) <= kMargin * least;
                       });
}

}  // namespace tfring
