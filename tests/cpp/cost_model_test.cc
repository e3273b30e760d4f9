// The predictions and choices of the cost model, and an allreduce that follows
// them.
#include "tfring_ops/algorithms/adaptive/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/manual_clock.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/pairwise/doubling.h"

namespace tfring {
namespace {

using ::testing::DoubleNear;

// In units of a second, so that times can be worked out by hand.
Costs RoundCosts() {
  Costs costs;
  costs.within = {1, 0.5};
  costs.across = {10, 1};
  costs.shared_across = {10, 4};
  costs.reduce_seconds_per_byte = 0.25;
  return costs;
}

double Predict(const AllreducePlan& plan, Layout layout, int64_t bytes) {
  return PredictSeconds(plan, layout, RoundCosts(), bytes);
}

std::vector<std::string> Names(const std::vector<AllreducePlan>& plans) {
  std::vector<std::string> names;
  for (const AllreducePlan& plan : plans) names.push_back(plan.Name());
  return names;
}

AllreducePlan Grid(const std::vector<int>& shape) {
  return {AllreduceAlgorithm::kHierarchical, shape};
}

const AllreducePlan kRing;
const AllreducePlan kDoubling{AllreduceAlgorithm::kRecursiveDoubling, {}};

TEST(CostModelTest, ARingTakesTwoStepsForEachOtherRank) {
  // 6 steps of 2 bytes, 3 of them reduced.
  EXPECT_DOUBLE_EQ(Predict(kRing, {1, 4}, 8), 6 * (1 + 2 * 0.5) + 3 * 2 * 0.25);
  // Every other link is within a node.
  EXPECT_DOUBLE_EQ(Predict(kRing, {2, 2}, 8),
                   6 * (10 + 2 * 0.75) + 3 * 2 * 0.25);
  // With long messages the slowest link is always busy.
  Costs costs = RoundCosts();
  costs.reduce_seconds_per_byte = 0;
  EXPECT_DOUBLE_EQ(PredictSeconds(kRing, {2, 2}, costs, 4000), 6 * 1000);
}

TEST(CostModelTest, ALongChunkIsReducedWhileItIsOnTheWire) {
  Costs costs = RoundCosts();
  costs.segment_bytes = 100;
  const auto seconds = [&](int64_t bytes) {
    return PredictSeconds(kRing, {2, 1}, costs, bytes);
  };
  EXPECT_DOUBLE_EQ(seconds(200), 2 * (10 + 100 * 1) + 100 * 0.25);
  EXPECT_DOUBLE_EQ(seconds(2000), 2 * 1000 * 1);
  costs.reduce_seconds_per_byte = 2;
  EXPECT_DOUBLE_EQ(seconds(2000), 1000 * 2 + 1000 * 1);
  // If the same cores send and reduce, the times add up.
  EXPECT_DOUBLE_EQ(PredictSeconds(kRing, {1, 2}, costs, 2000),
                   2 * (1 + 1000 * 0.5) + 1000 * 2);
}

TEST(CostModelTest, AGridIsRingsOfEverSmallerShares) {
  const double within = 2 * (1 + 8 * 0.5) + 8 * 0.25;
  // 16 bytes in 4 nodes of 2: a ring of 2 within, then one of 4 for 8 bytes.
  // The link is free for the last rank of a node after 2 bytes of the other.
  EXPECT_DOUBLE_EQ(Predict(Grid({2, 4}), {4, 2}, 16),
                   within + 2 * (4 - 1) + 6 * (10 + 2 * 1) + 3 * 2 * 0.25);
  // The second message of a rank waits until the link has carried the first
  // ones of both ranks, which takes a second longer than the first reduction.
  EXPECT_DOUBLE_EQ(Predict(Grid({2, 2, 2}), {4, 2}, 16),
                   within + 4 * (4 - 1) + 2 * (10 + 4 * 1) + 4 * 0.25 + 1 +
                       2 * (10 + 2 * 1) + 2 * 0.25);
}

TEST(CostModelTest, TheAxesOfAGridWorkOnDifferentParts) {
  Costs costs;
  costs.within = {0, 1};
  const auto mebibytes = [&](const Layout& layout, double latency,
                             double between) {
    costs.shared_across = costs.across = {latency * (1 << 20), between};
    return PredictSeconds(Grid({2, 2}), layout, costs, 16 << 20) / (1 << 20);
  };
  // Of 32 parts the first axis takes 0.25 MiB to scatter and to gather each,
  // the second axis twice 0.125 MiB.  One kind of link is always busy, but for
  // the beginning and the end.
  EXPECT_THAT(mebibytes({2, 2}, 0, 1), DoubleNear(32 * 0.5, 0.1));
  EXPECT_THAT(mebibytes({2, 2}, 0, 4), DoubleNear(32 + 0.5, 0.1));
  // Up to sixteen parts at a time pass the latencies.
  EXPECT_THAT(mebibytes({2, 2}, 100, 1), DoubleNear(2.5 * 200, 10));
  // Within one node both axes take turns.
  EXPECT_THAT(mebibytes({1, 4}, 0, 0), DoubleNear(32 * 0.75, 0.1));
}

TEST(CostModelTest, RecursiveDoublingTakesALogarithmOfRounds) {
  EXPECT_DOUBLE_EQ(Predict(kDoubling, {1, 8}, 8), 3 * (1 + 8 * 0.5 + 8 * 0.25));
  // The first round is within a node.  In the second one the link carries the
  // messages of both ranks, and the last one is reduced when it has arrived.
  EXPECT_DOUBLE_EQ(Predict(kDoubling, {2, 2}, 8),
                   (1 + 8 * 0.5 + 8 * 0.25) + (8 * 4 + 10 + 8 * 0.25));
  // A surplus rank sends its data before the rounds and receives the result
  // after.
  EXPECT_DOUBLE_EQ(Predict(kDoubling, {1, 3}, 8),
                   3 * (1 + 8 * 0.5) + 2 * 8 * 0.25);
  // Every block takes all rounds.
  EXPECT_DOUBLE_EQ(Predict(kDoubling, {1, 2}, 2 << 20),
                   2 * Predict(kDoubling, {1, 2}, 1 << 20));
}

TEST(CostModelTest, ARoundOfDoublingIsAsLongAsItsLongestWay) {
  Costs costs;
  costs.within.latency_seconds = 1;
  costs.shared_across.latency_seconds = 1000;
  for (int nodes = 2; nodes <= 20; ++nodes) {
    for (int ranks_per_node = 1; ranks_per_node <= 16; ++ranks_per_node) {
      const int n = nodes * ranks_per_node;
      const int doublers = Doubling(0, n).doublers();
      // A distance of 0 is an exchange with the surplus ranks.
      const auto seconds_of_round = [&](int distance) {
        for (int place = 0; place < n; ++place) {
          const Doubling doubling(place, n);
          if (distance == 0 ? !doubling.takes() : doubling.gives()) continue;
          const int peer =
              distance == 0 ? doubling.surplus_peer() : doubling.Peer(distance);
          if (peer / ranks_per_node != place / ranks_per_node) return 1000;
        }
        return 1;
      };
      int seconds = doublers < n ? 2 * seconds_of_round(0) : 0;
      for (int distance = 1; distance < doublers; distance *= 2) {
        seconds += seconds_of_round(distance);
      }
      EXPECT_DOUBLE_EQ(
          PredictSeconds(kDoubling, {nodes, ranks_per_node}, costs, 0), seconds)
          << nodes << " nodes of " << ranks_per_node;
    }
  }
}

TEST(CostModelTest, KnowsWhatALayoutAllows) {
  using Strings = std::vector<std::string>;
  const auto all = AllreduceAlgorithm::kAuto;
  EXPECT_EQ(Names(Plans({1, 1}, all)), Strings{"ring"});
  EXPECT_EQ(Names(Plans({1, 2}, all)), (Strings{"ring", "recursive_doubling"}));
  EXPECT_EQ(Names(Plans({1, 7}, all)), (Strings{"ring", "recursive_doubling"}));
  EXPECT_EQ(Names(Plans({1, 8}, all)),
            (Strings{"ring", "hierarchical 2 x 2 x 2", "hierarchical 2 x 4",
                     "recursive_doubling"}));
  EXPECT_EQ(Names(Plans({3, 2}, all)),
            (Strings{"hierarchical 2 x 3", "ring", "recursive_doubling"}));
  EXPECT_EQ(
      Names(Plans({36, 8}, AllreduceAlgorithm::kHierarchical)),
      (Strings{"hierarchical 8 x 2 x 2 x 3 x 3", "hierarchical 8 x 3 x 3 x 4",
               "hierarchical 8 x 6 x 6", "hierarchical 8 x 36"}));
  // These ranks form no grid, so the ring is used.
  EXPECT_EQ(Names(Plans({5, 1}, AllreduceAlgorithm::kHierarchical)),
            Strings{"ring"});
}

TEST(CostModelTest, AGridHasAllRanks) {
  for (int nodes = 1; nodes <= 40; ++nodes) {
    for (int ranks_per_node = 1; ranks_per_node <= 9; ++ranks_per_node) {
      for (const AllreducePlan& plan :
           Plans({nodes, ranks_per_node}, AllreduceAlgorithm::kHierarchical)) {
        int ranks = 1;
        for (const int length : plan.shape) ranks *= length;
        EXPECT_TRUE(plan.shape.empty() || ranks == nodes * ranks_per_node);
      }
    }
  }
}

TEST(CostModelTest, ChoosesBySize) {
  const Layout layout{512, 8};
  const Costs costs = Costs::Typical(8);
  const auto plans = Plans(layout, AllreduceAlgorithm::kAuto);
  const auto name = [&](int64_t bytes) {
    return Fastest(plans, layout, costs, bytes).Name();
  };
  EXPECT_EQ(name(8), "recursive_doubling");
  EXPECT_EQ(name(64 << 20).substr(0, 14), "hierarchical 8");
}

TEST(LayoutTest, CountsNodesOfEqualSize) {
  const auto layout = [](const std::vector<int>& nodes) {
    const Layout found = Layout::Of(*MakeInProcessTransports(nodes)[0]);
    return std::pair(found.nodes, found.ranks_per_node);
  };
  EXPECT_EQ(layout({4}), std::pair(1, 1));
  EXPECT_EQ(layout({0, 0, 0}), std::pair(1, 3));
  EXPECT_EQ(layout({0, 1, 0, 1}), std::pair(2, 2));
  EXPECT_EQ(layout({0, 1, 0}), std::pair(3, 1));
}

class AdaptiveAllreduceTest : public testing::TestWithParam<Medium> {};
INSTANTIATE_TEST_SUITE_P(Media, AdaptiveAllreduceTest,
                         testing::Values(Medium::kInProcess,
                                         Medium::kSharedMemory,
                                         Medium::kTwoNodes));

TEST_P(AdaptiveAllreduceTest, RanksMeasureTheSameCosts) {
  std::vector<Costs> measured(4);
  OnRanks(
      4,
      [&](Transport& transport) {
        const HostRank host(transport, 64 << 10);
        measured[host.rank()] = MeasureCosts(host.context()).value();
      },
      GetParam());
  for (const Costs& costs : measured) {
    EXPECT_EQ(std::memcmp(&costs, measured.data(), sizeof(costs)), 0);
    EXPECT_GT(costs.within.latency_seconds, 0);
    EXPECT_LT(costs.within.latency_seconds, 1);
    EXPECT_GT(costs.reduce_seconds_per_byte, 0);
    EXPECT_EQ(costs.across.latency_seconds > 0,
              GetParam() == Medium::kTwoNodes);
  }
}

// Two nodes of two ranks: a message between them advances its sender's clock.
// Returns the most bytes that a rank has sent between nodes, and the costs.
std::pair<int64_t, Costs> MeasureBetweenNodes(double bytes_per_second,
                                              std::chrono::microseconds delay) {
  auto transports = MakeTransports(Medium::kNodesOfTwo, 4);
  std::vector<ManualClock> clocks(4);
  std::vector<int64_t> sent_bytes(4);
  std::vector<Costs> measured(4);
  OnThreads(4, [&](int rank) {
    Hooks hooks;
    hooks.send = [&](int peer, size_t bytes) {
      if (peer / 2 == rank / 2) return;
      sent_bytes[rank] += static_cast<int64_t>(bytes);
      const std::chrono::duration<double> taken(bytes / bytes_per_second);
      clocks[rank].Advance(delay +
                           std::chrono::duration_cast<Clock::duration>(taken));
    };
    HookedTransport transport(std::move(transports[rank]), std::move(hooks));
    const HostRank host(transport, 4 << 20);
    measured[rank] = MeasureCosts(host.context(), clocks[rank]).value();
  });
  for (const Costs& costs : measured) {
    EXPECT_EQ(std::memcmp(&costs, measured.data(), sizeof(costs)), 0);
  }
  return {*std::max_element(sent_bytes.begin(), sent_bytes.end()), measured[0]};
}

TEST(CostMeasurementTest, SendsLittleOverASlowLink) {
  using std::chrono::microseconds;
  // 100 Mbit/s: 64 KiB take 5 ms.
  const auto [sent_bytes, costs] =
      MeasureBetweenNodes(12.5e6, microseconds(100));
  EXPECT_LT(sent_bytes, 600 << 10);
  EXPECT_NEAR(costs.across.latency_seconds, 100e-6, 5e-6);
  EXPECT_NEAR(costs.across.seconds_per_byte * 12.5e6, 1, 0.01);
  EXPECT_NEAR(costs.shared_across.seconds_per_byte * 12.5e6, 1, 0.01);
  // A long way hides the bandwidth from small messages.
  const auto [sent_far_bytes, far] =
      MeasureBetweenNodes(12.5e6, microseconds(25'000));
  EXPECT_GT(sent_far_bytes, sent_bytes);
  EXPECT_LT(sent_far_bytes, 3 << 20);
  EXPECT_NEAR(far.across.latency_seconds, 25e-3, 1e-4);
  EXPECT_NEAR(far.across.seconds_per_byte * 12.5e6, 1, 0.01);
}

TEST(CostMeasurementTest, SendsEnoughOverAFastLink) {
  // 10 Gbit/s: 1 MiB takes 0.8 ms.
  const auto [sent_bytes, costs] =
      MeasureBetweenNodes(1.25e9, std::chrono::microseconds(20));
  EXPECT_GT(sent_bytes, 4 << 20);
  EXPECT_LT(sent_bytes, 12 << 20);
  EXPECT_NEAR(costs.across.seconds_per_byte * 1.25e9, 1, 0.01);
}

TEST_P(AdaptiveAllreduceTest, ReducesWhateverItChooses) {
  using Algorithm = AllreduceAlgorithm;
  for (const auto& [algorithm, deterministic] :
       {std::pair(Algorithm::kAuto, false), std::pair(Algorithm::kAuto, true),
        std::pair(Algorithm::kRing, false),
        std::pair(Algorithm::kHierarchical, false),
        std::pair(Algorithm::kRecursiveDoubling, false)}) {
    Options options;
    options.allreduce = algorithm;
    options.deterministic = deterministic;
    std::vector<SolvedAllreduce> solved;
    for (const int64_t count : {0, 1000, 70'001}) {
      solved.emplace_back(
          AllreduceCase{DataType::kFloat32, ReduceOp::kAverage, count}, 4);
    }
    OnRanks(
        4,
        [&](Transport& transport) {
          const HostRank host(transport, 64 << 10);
          AdaptiveAllreduce allreduce(host.context(), options,
                                      CostSource::kMeasured);
          const auto run = [&](const RingContext&, const RingBuffers& buffers) {
            return allreduce.Run(buffers);
          };
          const auto run_staged =
              [&](const RingContext&, const RingBuffers& buffers,
                  absl::Span<std::byte> stage, Staging& staging) {
                return allreduce.RunStaged(buffers, stage, staging);
              };
          for (const SolvedAllreduce& c : solved) {
            CheckAllreduce(transport, c, {64 << 10}, run);
            HostRank(transport, 64 << 10)
                .CheckPieces(c, {c.count / 3, 0, c.count - c.count / 3}, run);
            HostRank(transport, 64 << 10).CheckStaged(c, 30'000, run_staged);
          }
        },
        GetParam());
  }
}

TEST(AdaptiveAllreduceLogTest, SaysWhatItHasChosen) {
  Options options;
  options.verbose = true;
  options.deterministic = true;
  testing::internal::CaptureStderr();
  OnRanks(4, [&](Transport& transport) {
    const HostRank host(transport, 64 << 10);
    AdaptiveAllreduce allreduce(host.context(), options, CostSource::kMeasured);
    float value = 1;
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(allreduce.Run({&value, &value, 1}).ok());
    }
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tfring info on rank 0: allreduce of 4 ranks on 1 node: "
            "recursive_doubling, hierarchical 2 x 2 from 32768 bytes, "
            "ring from 262144 bytes; supposed: 2.0 us and 8.00 GB/s within a "
            "node, 10.00 GB/s of "
            "reduction\n");
}

// As where a peer sends to a rank that has given up, and not told it yet.
TEST(CostMeasurementTest, MessagesAfterAnErrorDoNoHarm) {
  const auto transports = MakeTransports(Medium::kInProcess, 2);
  const HostRank host(*transports[0], 64 << 10);
  transports[0]->SetAttendant([] { return absl::UnavailableError("lost"); });
  EXPECT_EQ(MeasureCosts(host.context()).status().message(), "lost");
  const std::vector<std::byte> late(8);
  transports[1]->StartSend(0, late);  // AddressSanitizer sees a wrong write.
}

}  // namespace
}  // namespace tfring
