// The lane of a GPU, as a process's engine has it made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/mpi_world.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/runtime/device_lane.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

class MpiCudaLaneTest : public testing::Test {
 protected:
  // The costs that the lane uses to choose its algorithms.
  std::optional<Costs> CostsOfLane(const Options& options) {
    const Lane lane = MakeDeviceLane(options, 0, *host_).value();
    EXPECT_EQ(lane.finish(), absl::OkStatus());
    return lane.costs;
  }

  const std::unique_ptr<Transport> host_ =
      MakeWorldTransport(SharedMemory::kWithinNodes);
};

TEST_F(MpiCudaLaneTest, ItsCostsAreMeasuredOnTheGpuAndTheSameOnAllRanks) {
  // A hop is at least two tasks of a stream.  Each task takes half this delay
  // on average, and ten hops in a row are measured.
  constexpr double kDelaySeconds = 2e-3;
  for (const bool ipc : {true, false}) {
    Options options;
    options.cuda_ipc = ipc;
    const auto quick = CostsOfLane(options);
    std::optional<Costs> slow;
    {
      const WithFakeCuda delay(&fake_cuda::Options::delay_us,
                               static_cast<int>(1e6 * kDelaySeconds));
      slow = CostsOfLane(options);
    }
    if (host_->size() == 1) {
      EXPECT_FALSE(slow.has_value());
      continue;
    }
    ASSERT_TRUE(slow.has_value() && quick.has_value());
    EXPECT_GT(slow->within.latency_seconds, kDelaySeconds / 4);
    EXPECT_GT(slow->within.latency_seconds, quick->within.latency_seconds);
    EXPECT_GT(quick->within.seconds_per_byte, 0);
    EXPECT_GT(quick->reduce_seconds_per_byte, 0);
    const std::vector<Costs> of_ranks = ExchangeOne(*host_, *slow).value();
    for (const Costs& costs : of_ranks) {
      EXPECT_EQ(std::memcmp(&costs, &*slow, sizeof(costs)), 0);
    }
  }
}

TEST_F(MpiCudaLaneTest, NothingIsMeasuredWhereNothingIsChosen) {
  Options options;
  options.deterministic = true;
  EXPECT_FALSE(CostsOfLane(options).has_value());
  options.deterministic = false;
  options.allreduce = AllreduceAlgorithm::kRing;
  EXPECT_FALSE(CostsOfLane(options).has_value());
}

}  // namespace
}  // namespace tfring
