// Streams that share the queues of their GPU.  A stream then waits for all
// earlier work in its queue, and the ranks must still end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/device_sets.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_ranks.h"

namespace tfring {
namespace {

using std::chrono::microseconds;

// Uses the ring, although other process sets use NCCL.
Options RingOptions(Way way) {
  Options options = OptionsFor(way);
  options.gpu_backend = Options::GpuBackend::kAuto;
  options.deterministic = true;
  options.device_segment_bytes = 16 << 10;
  return options;
}

struct Case {
  std::string name;
  std::vector<Options> options;  // of the process sets, by turns
};

// The parameters are the number of queues, and the backends of the process
// sets.  With 0 queues each stream has its own.
class CudaQueuesTest : public testing::TestWithParam<std::tuple<int, Case>> {};
INSTANTIATE_TEST_SUITE_P(
    , CudaQueuesTest,
    testing::Combine(
        testing::Values(0, 1, 2, 8),
        testing::Values(
            Case{"Ipc", {RingOptions(Way::kIpc)}},
            Case{"Staged", {RingOptions(Way::kStaged)}},
            Case{"Nccl", {NcclOptions()}},
            Case{"NcclAndIpc", {NcclOptions(), RingOptions(Way::kIpc)}},
            Case{"NcclAndStaged", {NcclOptions(), RingOptions(Way::kStaged)}})),
    [](const auto& test) {
      return std::get<1>(test.param).name +
             std::to_string(std::get<0>(test.param));
    });

// Sets that share one rank, several or all, each at its own pace; and streams
// that are late by turns.
TEST_P(CudaQueuesTest, SetsOfAllKindsAtOnce) {
  constexpr int kSize = 4;
  const auto& [queues, way] = GetParam();
  const WithFakeCuda devices(&FakeOptions::devices, kSize);
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  const WithFakeCuda shared(&FakeOptions::queues, queues);
  const WithFakeCuda slow(&FakeOptions::delay_us, queues == 0 ? 2000 : 50);
  const Orders orders = MakeOrders(kSize);
  for (const auto& order : orders) order->Begin();
  const std::vector<std::vector<int32_t>> ranks = {
      {0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {0, 3}};
  std::vector<std::unique_ptr<DeviceSet>> sets;
  for (size_t id = 0; id < ranks.size(); ++id) {
    sets.push_back(
        std::make_unique<DeviceSet>(static_cast<int>(id), ranks[id], orders,
                                    way.options[id % way.options.size()]));
  }
  std::mt19937 random(queues);
  for (int round = 0; round < (queues == 0 ? 10 : 4); ++round) {
    for (const auto& set : sets) {
      set->Submit([&](int) { return microseconds(random() % 2000); });
    }
  }
  for (const auto& set : sets) set->ExpectSums();
  for (const auto& set : sets) set->Shutdown();
}

// On rank 0, an NCCL collective is in the queue before the sends of another
// process set's ring.  Rank 1 may not launch its part of the collective yet;
// without turns, its queue would have the ring's waits before that part.
TEST(CudaQueuesOrderTest, TheRingTakesTurnsWithNccl) {
  for (const Way way : {Way::kIpc, Way::kStaged}) {
    const WithFakeCuda devices(&FakeOptions::devices, 3);
    const WithFakeCuda open_own(&FakeOptions::open_own, 1);
    const WithFakeCuda shared(&FakeOptions::queues, 1);
    const Orders orders = MakeOrders(3);
    for (const auto& order : orders) order->Begin();
    DeviceSet by_nccl(0, {0, 1}, orders, NcclOptions());
    DeviceSet by_ring(1, {0, 1}, orders, RingOptions(way));
    DeviceSet first(2, {1, 2}, orders, NcclOptions());
    for (DeviceSet* const set : {&by_nccl, &by_ring, &first}) set->Meet();
    const int before = FakeNccl()->launched;
    std::atomic<int> begun{0};
    std::atomic<bool> nccl_may{false}, ring_may{false}, last_may{false};
    const auto wait_for = [](const std::atomic<bool>& may) {
      EXPECT_TRUE(Await([&] { return may.load(); }));
    };
    // All are submitted at once, because a new tensor waits for the work in its
    // GPU's queue.
    first.SubmitBehind([&](int index) {
      ++begun;
      if (index == 1) wait_for(last_may);
    });
    by_nccl.SubmitBehind([&](int) { wait_for(nccl_may); });
    by_ring.SubmitBehind([&](int) { wait_for(ring_may); });
    EXPECT_TRUE(Await([&] { return begun == 2; }));
    first.clocks().AwaitLooks({0});
    nccl_may = true;
    EXPECT_TRUE(Await([&] { return FakeNccl()->launched > before; }));
    ring_may = true;
    by_ring.clocks().AwaitLooks({0, 1});
    last_may = true;
    for (DeviceSet* const set : {&by_nccl, &by_ring, &first}) {
      set->ExpectSums();
      set->Shutdown();
    }
  }
}

}  // namespace
}  // namespace tfring
