#include "tfring_ops/algorithms/adaptive/cost_model.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"

namespace tfring {
namespace {

// The model is too inexact to distinguish times that are closer.
constexpr double kMargin = 1.1;

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
// nodes, and whose other axes have the nodes: one axis, two, three, up to as
// many as there are factors.
std::vector<std::vector<int>> Shapes(const Layout& layout) {
  const bool several_nodes = layout.nodes > 1;
  const int others = several_nodes ? layout.nodes : layout.ranks_per_node;
  std::vector<std::vector<int>> shapes;
  for (const std::vector<int>& factors :
       {NearlyEqualFactors(others, 1), NearlyEqualFactors(others, 2),
        NearlyEqualFactors(others, 3), PrimeFactors(others)}) {
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

double MessageSeconds(const LinkCosts& link, double bytes) {
  return link.latency_seconds + bytes * link.seconds_per_byte;
}

double RingSeconds(const LinkCosts& link, double reduce_seconds_per_byte, int n,
                   double bytes) {
  const double chunk_bytes = bytes / n;
  return (n - 1) * (2 * MessageSeconds(link, chunk_bytes) +
                    chunk_bytes * reduce_seconds_per_byte);
}

double DoublingSeconds(const Layout& layout, const Costs& costs,
                       int64_t bytes) {
  const int n = layout.ranks();
  int doublers = 1;
  while (2 * doublers <= n) doublers *= 2;
  // With a power of two of ranks, the first rounds stay within the node.
  const bool nodes_are_whole =
      doublers == n &&
      (layout.ranks_per_node & (layout.ranks_per_node - 1)) == 0;
  const int64_t blocks = std::max<int64_t>(
      1, (bytes + kDoublingBlockBytes - 1) / kDoublingBlockBytes);
  const double block_bytes = static_cast<double>(bytes) / blocks;
  const double reduce = block_bytes * costs.reduce_seconds_per_byte;
  const LinkCosts& far = layout.nodes > 1 ? costs.shared_across : costs.within;
  double seconds = 0;
  for (int distance = 1; distance < doublers; distance *= 2) {
    const bool near = nodes_are_whole && distance < layout.ranks_per_node;
    seconds += reduce + MessageSeconds(near ? costs.within : far, block_bytes);
  }
  if (doublers < n) seconds += reduce + 2 * MessageSeconds(far, block_bytes);
  return blocks * seconds;
}

// Returns the costs of the slowest step of a ring over all ranks, for which all
// other steps wait.
LinkCosts SlowestOfRing(const Layout& layout, const Costs& costs) {
  if (layout.nodes == 1) return costs.within;
  if (layout.ranks_per_node == 1) return costs.across;
  return {
      std::max(costs.within.latency_seconds, costs.across.latency_seconds),
      std::max(costs.within.seconds_per_byte, costs.across.seconds_per_byte)};
}

double GridSeconds(const std::vector<int>& shape, const Layout& layout,
                   const Costs& costs, double bytes) {
  const bool first_is_node = layout.nodes > 1 && layout.ranks_per_node > 1;
  double seconds = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool near = layout.nodes == 1 || (first_is_node && axis == 0);
    seconds += RingSeconds(near ? costs.within : costs.shared_across,
                           costs.reduce_seconds_per_byte, shape[axis], bytes);
    bytes /= shape[axis];
  }
  return seconds;
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
  if (wanted(AllreduceAlgorithm::kRing)) plans.emplace_back();
  if (wanted(AllreduceAlgorithm::kHierarchical)) {
    for (const std::vector<int>& shape : Shapes(layout)) {
      plans.push_back({AllreduceAlgorithm::kHierarchical, shape});
    }
  }
  if (wanted(AllreduceAlgorithm::kRecursiveDoubling)) {
    plans.push_back({AllreduceAlgorithm::kRecursiveDoubling, {}});
  }
  if (plans.empty() || layout.ranks() == 1) return {AllreducePlan()};
  return plans;
}

double PredictSeconds(const AllreducePlan& plan, const Layout& layout,
                      const Costs& costs, int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  switch (plan.algorithm) {
    case AllreduceAlgorithm::kRecursiveDoubling:
      return DoublingSeconds(layout, costs, bytes);
    case AllreduceAlgorithm::kHierarchical:
      return GridSeconds(plan.shape, layout, costs, size);
    case AllreduceAlgorithm::kAuto:
    case AllreduceAlgorithm::kRing:
      break;
  }
  return RingSeconds(SlowestOfRing(layout, costs),
                     costs.reduce_seconds_per_byte, layout.ranks(), size);
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
