// Collectives of up to 512 ranks, in simulated time.
#include "tests/cpp/simulated_job.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"

namespace tfring {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSegmentBytes = 512 << 10;

SimulatedNetwork Nodes(int nodes, int ranks_per_node) {
  SimulatedNetwork network;
  network.nodes = nodes;
  network.ranks_per_node = ranks_per_node;
  return network;
}

absl::Status Allreduce(Transport& transport, const AllreducePlan& plan,
                       const RingBuffers& buffers) {
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), kSegmentBytes, scratch};
  return AllreduceByPlan(context).Run(plan, buffers);
}

// Returns the seconds in which the ranks add up `count` numbers each, and
// checks the sums.
double SecondsOfSum(SimulatedJob& job, const AllreducePlan& plan,
                    int64_t count) {
  std::vector<float> expected(count);
  for (int64_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < job.size(); ++rank) {
      expected[i] += static_cast<float>((rank * 7 + i) % 13);
    }
  }
  int wrong = 0;
  const absl::StatusOr<double> seconds = job.Run([&](Transport& transport) {
    std::vector<float> data(count);
    for (int64_t i = 0; i < count; ++i) {
      data[i] = static_cast<float>((transport.rank() * 7 + i) % 13);
    }
    RingBuffers buffers;
    buffers.input = buffers.output = data.data();
    buffers.count = count;
    const absl::Status status = Allreduce(transport, plan, buffers);
    if (data != expected) ++wrong;
    return status;
  });
  EXPECT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_EQ(wrong, 0) << "ranks, with " << plan.Name();
  return seconds.value_or(0);
}

class SumTest : public testing::TestWithParam<SimulatedNetwork> {};

TEST_P(SumTest, EveryPlanIsExact) {
  const SimulatedNetwork& network = GetParam();
  const Layout layout{network.nodes, network.ranks_per_node};
  for (const AllreducePlan& plan : Plans(layout, AllreduceAlgorithm::kAuto)) {
    SimulatedJob job(network);
    SecondsOfSum(job, plan, 5003);
  }
}

SimulatedNetwork WithJitter(SimulatedNetwork network) {
  network.jitter_seconds = 1e-4;
  return network;
}
SimulatedNetwork OnATree(SimulatedNetwork network) {
  network.nodes_per_leaf = 4;
  network.uplinks_per_leaf = 2;
  network.placement_seed = 1;
  return network;
}
INSTANTIATE_TEST_SUITE_P(Networks, SumTest,
                         testing::Values(Nodes(1, 3), Nodes(5, 1), Nodes(8, 8),
                                         WithJitter(Nodes(6, 4)),
                                         OnATree(Nodes(16, 2)), Nodes(64, 8)));

TEST(SimulatedJobTest, AMessageTakesItsLatencyAndItsBytes) {
  for (const bool across : {false, true}) {
    SimulatedJob job(across ? Nodes(2, 1) : Nodes(1, 2));
    const absl::StatusOr<double> seconds = job.Run([](Transport& transport) {
      std::vector<std::byte> data(1 << 20);
      return transport.Wait(transport.rank() == 0
                                ? transport.StartSend(1, absl::MakeSpan(data))
                                : transport.StartRecv(0, absl::MakeSpan(data)));
    });
    ASSERT_TRUE(seconds.ok()) << seconds.status();
    EXPECT_DOUBLE_EQ(
        *seconds, across ? 20e-6 + (1 << 20) / 12.5e9 : 2e-6 + (1 << 20) / 8e9);
  }
}

TEST(SimulatedJobTest, ARingIsOneStreamAndTakesItsBytes) {
  SimulatedJob job(Nodes(4, 4));
  const int64_t count = 1 << 20;
  const double seconds = SecondsOfSum(job, AllreducePlan{}, count);
  EXPECT_EQ(job.TakeStreams(), 1);
  const double of_bytes = 2.0 * 15 / 16 * 4.0 * count / 8e9;
  EXPECT_GT(seconds, of_bytes);
  EXPECT_LT(seconds, 1.2 * of_bytes);
}

// See Note [Parts of a grid] in ring/grid_schedule.cc.
TEST(SimulatedJobTest, AGridKeepsTheBusiestLinksBusy) {
  const int64_t count = 4'000'003;
  const double bytes = 2 * 3.0 / 4 * 4 * count;  // through either kind of link
  for (const double across : {12.5e9, 1.25e9}) {
    SimulatedNetwork network = Nodes(4, 4);
    network.across.bytes_per_second = across;
    const double least =
        bytes / std::min(network.within.bytes_per_second, across);
    for (const auto& shape :
         {std::vector<int>{4, 4}, std::vector<int>{4, 2, 2}}) {
      SimulatedJob job(network);
      const double seconds =
          SecondsOfSum(job, {AllreduceAlgorithm::kHierarchical, shape}, count);
      EXPECT_GT(seconds, least);
      EXPECT_LT(seconds, 1.1 * least) << shape.size() << " axes";
    }
  }
}

TEST(SimulatedJobTest, ARunCanBeRepeated) {
  SimulatedJob one(WithJitter(Nodes(3, 2))), other(WithJitter(Nodes(3, 2)));
  const double seconds = SecondsOfSum(one, AllreducePlan{}, 1000);
  EXPECT_EQ(SecondsOfSum(other, AllreducePlan{}, 1000), seconds);
  EXPECT_NE(SecondsOfSum(one, AllreducePlan{}, 1000), seconds);  // other jitter
}

Costs MeasuredCosts(SimulatedJob& job) {
  absl::StatusOr<Costs> costs;
  const absl::StatusOr<double> seconds = job.Run([&](Transport& transport) {
    Workspace scratch(CpuKernels());
    const RingContext context{transport, CpuKernels(), kSegmentBytes, scratch};
    costs = MeasureCosts(context, job.clock());
    return costs.status();
  });
  EXPECT_TRUE(seconds.ok()) << seconds.status();
  return costs.value_or(Costs());
}

// How late a rank begins differs most where their number is no power of two.
TEST(SimulatedJobTest, CostsAreMeasuredOnAnyNumberOfNodes) {
  const auto is_about = [](double expected) {
    return testing::DoubleNear(expected, 0.1 * expected);
  };
  for (const int nodes : {2, 3, 5, 6, 7, 12}) {
    for (const bool link_per_rank : {false, true}) {
      SimulatedNetwork network = Nodes(nodes, 4);
      network.link_per_rank = link_per_rank;
      SimulatedJob job(network);
      const Costs costs = MeasuredCosts(job);
      SCOPED_TRACE(testing::Message() << nodes << " nodes");
      EXPECT_THAT(costs.within.latency_seconds, is_about(2e-6));
      EXPECT_THAT(1 / costs.within.seconds_per_byte, is_about(8e9));
      EXPECT_THAT(costs.across.latency_seconds,
                  is_about((3 * 2e-6 + 20e-6) / 4));
      EXPECT_THAT(costs.shared_across.latency_seconds, is_about(20e-6));
      EXPECT_THAT(1 / costs.shared_across.seconds_per_byte,
                  is_about(link_per_rank ? 12.5e9 : 12.5e9 / 4));
    }
  }
}

TEST(SimulatedJobTest, ThePredictionIsTheSimulatedTime) {
  for (const int nodes : {2, 4, 6}) {
    // Where the ranks are no power of two, links are busy at other times.
    const double tolerance = nodes == 6 ? 0.15 : 0.1;
    for (const bool link_per_rank : {false, true}) {
      SimulatedNetwork network = Nodes(nodes, 4);
      network.link_per_rank = link_per_rank;
      const Layout layout{nodes, 4};
      SimulatedJob job(network);
      const Costs costs = MeasuredCosts(job);
      for (const int64_t count : {256, 300'000}) {
        for (const auto& plan : Plans(layout, AllreduceAlgorithm::kAuto)) {
          const double seconds = SecondsOfSum(job, plan, count);
          EXPECT_NEAR(PredictSeconds(plan, layout, costs, 4 * count) / seconds,
                      1, tolerance)
              << plan.Name() << " of " << count << " on " << nodes << " nodes";
        }
      }
    }
  }
}

TEST(SimulatedJobTest, TheChosenPlanIsNearTheFastest) {
  for (const int nodes : {2, 3, 6, 12}) {
    for (const int64_t count : {256, 100'000}) {
      const SimulatedNetwork network = OnATree(Nodes(nodes, 4));
      const Layout layout{nodes, 4};
      SimulatedJob job(network);
      const Costs costs = MeasuredCosts(job);
      const auto plans = Plans(layout, AllreduceAlgorithm::kAuto);
      const AllreducePlan& chosen = Fastest(plans, layout, costs, 4 * count);
      const double seconds = SecondsOfSum(job, chosen, count);
      for (const AllreducePlan& plan : plans) {
        EXPECT_LT(seconds, 1.1 * SecondsOfSum(job, plan, count))
            << chosen.Name() << " and " << plan.Name() << ", " << nodes
            << " nodes";
      }
    }
  }
}

TEST(SimulatedJobTest, ALostRankFailsItsPeers) {
  SimulatedJob job(Nodes(4, 2));
  job.Kill(3, 1e-4);
  const absl::StatusOr<double> seconds = job.Run([](Transport& transport) {
    std::vector<float> data(1 << 20);
    RingBuffers buffers;
    buffers.input = buffers.output = data.data();
    buffers.count = 1 << 20;
    const absl::Status status = Allreduce(transport, AllreducePlan{}, buffers);
    if (!status.ok()) transport.Abort(status);
    return status;
  });
  EXPECT_EQ(seconds.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(seconds.status().message(), HasSubstr("rank 3 is lost"));
  EXPECT_LT(job.now(), 2e-4);
}

TEST(SimulatedJobTest, RanksThatWaitForEverAreNamed) {
  SimulatedJob job(Nodes(1, 3));
  const absl::StatusOr<double> seconds = job.Run([](Transport& transport) {
    std::byte data{};
    if (transport.rank() == 0) return absl::OkStatus();
    return transport.Wait(transport.StartRecv(0, Bytes(&data, 1)));
  });
  EXPECT_THAT(seconds.status().message(), HasSubstr("for ever: 1, 2"));
}

}  // namespace
}  // namespace tfring
