#include "tfring_ops/algorithms/adaptive/cost_model.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/grid_schedule.h"

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

// Returns how many ranks of a node exchange with other nodes in a round of
// recursive doubling, on the node that has most of them.  The distance is that
// of the round, or 0 for the exchange with the surplus ranks.
int MostAcross(const Layout& layout, int distance) {
  std::vector<int> across(layout.nodes);
  for (int place = 0; place < layout.ranks(); ++place) {
    const Doubling doubling(place, layout.ranks());
    const bool exchanges = distance == 0 ? doubling.takes() : !doubling.gives();
    if (!exchanges) continue;
    const int peer =
        distance == 0 ? doubling.surplus_peer() : doubling.Peer(distance);
    const int node = place / layout.ranks_per_node;
    across[node] += peer / layout.ranks_per_node != node;
  }
  return *std::max_element(across.begin(), across.end());
}

double DoublingSeconds(const Layout& layout, const Costs& costs,
                       int64_t bytes) {
  const Path near = Within(layout, costs), far = Across(costs);
  const int64_t blocks = std::max<int64_t>(
      1, (bytes + kDoublingBlockBytes - 1) / kDoublingBlockBytes);
  const double block_bytes = static_cast<double>(bytes) / blocks;
  double seconds = 0;
  // While the link of a node carries the blocks of its other ranks, those whose
  // blocks came first reduce them, and begin the next round between nodes.  The
  // last rank is `late` seconds behind the first one.
  double late = 0;
  const auto exchange = [&](int distance, double reduction) {
    const int across = MostAcross(layout, distance);
    const Path& path = across > 0 ? far : near;
    const double wire = block_bytes * path.own_seconds_per_byte;
    const double link = std::max(wire, block_bytes * path.seconds_per_byte *
                                           across / layout.ranks_per_node);
    const double alone = path.latency_seconds + wire + reduction;
    if (across == 0) seconds += late;
    seconds += std::max(link, alone);
    late = std::min(link, alone) - wire;
  };
  const int doublers = Doubling(0, layout.ranks()).doublers();
  const double reduction = block_bytes * costs.reduce_seconds_per_byte;
  if (doublers < layout.ranks()) exchange(0, reduction);
  for (int distance = 1; distance < doublers; distance *= 2) {
    exchange(distance, reduction);
  }
  if (doublers < layout.ranks()) exchange(0, 0);
  return blocks * (seconds + late);
}

// The messages that one rank sends over the links of a path.
class Wire {
 public:
  explicit Wire(const Path& path) : path_(path) {}

  // Sends a message at the time `now`, and moves it on while the rank's core is
  // busy with that.  Returns when the message arrives.
  double Send(double bytes, double& now) {
    const double own = bytes * path_.own_seconds_per_byte;
    const double of_all = bytes * path_.seconds_per_byte;
    if (!path_.overlaps) return now += path_.latency_seconds + own;
    // The rank is the last one of its node that sends.
    if (free_ == 0) free_ = now + of_all - own;
    const double begin = std::max(now, free_);
    free_ = begin + of_all;
    return begin + own + path_.latency_seconds;
  }

 private:
  const Path path_;
  double free_ = 0;  // when the link has carried all messages so far
};

// Follows one rank through its moves.  All ranks make the same moves at the
// same times, so the rank receives what it sends.
double GridSeconds(const std::vector<int>& shape, const Layout& layout,
                   const Costs& costs, int64_t bytes) {
  Wire within(Within(layout, costs)), across(Across(costs));
  struct Axis {
    Wire& wire;
    int64_t segments;  // of a chunk
    double segment_bytes;
    std::deque<double> arrivals;
  };
  std::vector<Axis> axes;
  const int64_t parts = GridParts(shape, bytes, costs.segment_bytes);
  double chunk_bytes = static_cast<double>(bytes) / parts;
  for (const int length : shape) {
    chunk_bytes /= length;
    const auto segments = std::max<int64_t>(
        1, std::ceil(chunk_bytes / static_cast<double>(costs.segment_bytes)));
    const bool is_within =
        layout.nodes == 1 || (layout.ranks_per_node > 1 && axes.empty());
    axes.push_back(
        {is_within ? within : across, segments, chunk_bytes / segments, {}});
  }
  double now = 0;
  const GridSchedule schedule = MakeGridSchedule(shape, parts);
  for (const auto& [time, part, move] : schedule.turns) {
    auto& [wire, segments, segment_bytes, arrivals] = axes[move.axis];
    for (int64_t i = 0; i < segments; ++i) {
      if (move.receives()) {
        now = std::max(now, arrivals.front());
        arrivals.pop_front();
      }
      if (move.reduces()) now += segment_bytes * costs.reduce_seconds_per_byte;
      if (move.sends()) arrivals.push_back(wire.Send(segment_bytes, now));
    }
  }
  return now;
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
  std::vector<double> seconds;
  for (const AllreducePlan& plan : plans) {
    seconds.push_back(PredictSeconds(plan, layout, costs, bytes));
  }
  const double least = *std::min_element(seconds.begin(), seconds.end());
  const auto first =
      std::find_if(seconds.begin(), seconds.end(),
                   [&](double of_plan) { return of_plan <= kMargin * least; });
  return plans[first - seconds.begin()];
}

}  // namespace tfring
