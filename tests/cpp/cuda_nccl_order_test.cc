// Several process sets on the same GPUs, each with a communicator of NCCL's:
// whatever their engines do first, all ranks launch in one order.  Sets that
// share one rank, several or all are in cuda_nccl_queues_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tests/cpp/device_sets.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/nccl_engines.h"
#include "tests/cpp/nccl_ranks.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/nccl/launch_order.h"

namespace tfring {
namespace {

using std::chrono::microseconds;

// Two process sets of the same two ranks, without an order: each rank launches
// a different set first.
class CudaNcclNoOrderTest : public testing::Test {
 protected:
  CudaNcclNoOrderTest() {
    for (DeviceSet* const set : {&world_, &same_}) set->Meet();
  }

  // Returns true if one of the sets reports an error with `text`.
  bool AreTold(absl::string_view text) {
    const int begun = FakeNccl()->begun, launched = FakeNccl()->launched;
    const auto await_first = [begun] {
      EXPECT_TRUE(Await([=] { return FakeNccl()->begun >= begun + 2; }));
    };
    world_.SubmitBehind([&](int rank) {
      if (rank == 0) await_first();
    });
    same_.SubmitBehind([&](int rank) {
      if (rank == 1) await_first();
    });
    EXPECT_TRUE(Await([=] { return FakeNccl()->launched >= launched + 4; }));
    bool are_told = false;
    for (DeviceSet* const set : {&world_, &same_}) {
      set->Advance(std::chrono::seconds(21));
      for (const absl::Status& status : set->Outcomes()) {
        are_told = are_told || absl::StrContains(status.message(), text);
      }
    }
    return are_told;
  }

  const WithFakeCuda devices_{&fake_cuda::Options::devices, 2};
  const Orders orders_ = MakeOrders(2);
  DeviceSet world_{0, {0, 1}, orders_, NcclOptions()};
  DeviceSet same_{1, {0, 1}, orders_, NcclOptions()};
};

// The fake NCCL detects a missing launch order, so it shows that the order is
// needed.
TEST_F(CudaNcclNoOrderTest, IsAnError) {
  EXPECT_TRUE(AreTold("launched in different orders"));
}

TEST_F(CudaNcclNoOrderTest, OrADeadlock) {
  const WithFakeNccl any(&fake_nccl::Options::any_order, 1);
  EXPECT_TRUE(AreTold("NCCL has waited"));
}

// Each rank begins with a different process set; both assignments are tested.
TEST(LaunchOrderTest, RanksAgreeOnWhoLaunchesFirst) {
  for (const int first : {0, 1}) {
    const Orders orders = MakeOrders(2);
    std::atomic<int> entered{0};
    std::vector<std::unique_ptr<Transport>> hosts[2];
    for (auto& of_set : hosts) {
      for (auto& host : of_set = MakeInProcessTransports(2)) {
        host = CountSends(std::move(host), entered);
      }
    }
    std::mutex mutex;
    std::vector<int> launched[2];
    std::vector<std::thread> threads;
    const auto enter = [&](int rank, int set) {
      const int before = entered;
      threads.emplace_back([&, rank, set] {
        const auto turn = orders[rank]->Await(set, *hosts[set][rank], 20);
        EXPECT_TRUE(turn.ok()) << turn.status();
        const std::lock_guard<std::mutex> lock(mutex);
        launched[rank].push_back(set);
      });
      EXPECT_TRUE(Await([&] { return entered > before; }));
    };
    for (const auto& order : orders) order->Begin();
    enter(0, first);
    enter(0, 1 - first);
    enter(1, 1 - first);
    enter(1, first);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(launched[0], launched[1]);
  }
}

// Keeps the null stream of the GPU busy until `ends`.
void Delay(int gpu, std::atomic<bool>& ends) {
  const auto device = OpenGpu(gpu);
  const CudaScope scope(**CudaDriver::Get(), device->context());
  static const auto launch =
      reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(
          FakeCudaFunction("cuLaunchHostFunc"));
  const auto wait = [](void* ends) {
    while (!*static_cast<std::atomic<bool>*>(ends)) std::this_thread::yield();
  };
  EXPECT_EQ(launch(nullptr, wait, &ends), 0);
}

// A collective that is launched first begins first, even if its tensor is late.
TEST(CudaNcclOrderTest, HoldsOnTheGpuToo) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, 2);
  const auto keep = {OpenGpu(0), OpenGpu(1)};
  const Orders orders = MakeOrders(2);
  for (const auto& order : orders) order->Begin();
  DeviceSet world(0, {0, 1}, orders, NcclOptions());
  DeviceSet same(1, {0, 1}, orders, NcclOptions());
  for (DeviceSet* const set : {&world, &same}) set->Meet();
  const int before = FakeNccl()->launched;
  const auto await = [before](int count) {
    EXPECT_TRUE(Await([=] { return FakeNccl()->launched >= before + count; }));
  };
  same.SubmitBehind([&](int) { await(2); });
  std::atomic<bool> ends{false};
  Delay(0, ends);
  world.Submit([](int) { return microseconds(); });
  await(4);
  ends = true;
  world.ExpectSums();
  same.ExpectSums();
  world.Shutdown();
  same.Shutdown();
}

// The first set besides the world is created while the world runs collectives.
TEST(CudaNcclOrderTest, BeginsInTheMiddle) {
  constexpr int kSize = 3;
  const WithFakeCuda devices(&fake_cuda::Options::devices, kSize);
  const WithFakeCuda slow(&FakeOptions::delay_us, 200);
  const Orders orders = MakeOrders(kSize);
  std::mt19937 random(1);
  const auto submit = [&](DeviceSet& set) {
    for (int round = 0; round < 6; ++round) {
      set.Submit([&](int) { return microseconds(random() % 1000); });
    }
  };
  DeviceSet world(0, {0, 1, 2}, orders, NcclOptions());
  submit(world);
  std::vector<Completion> begun(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    TensorEntry entry;
    entry.request.kind = CollectiveKind::kBarrier;
    entry.request.name = "barrier";
    entry.done = [&, rank](const absl::Status& status) {
      orders[rank]->Begin();
      begun[rank].Done(status);
    };
    world.engine(rank).Submit(std::move(entry));
  }
  submit(world);
  for (Completion& outcome : begun) ASSERT_EQ(outcome.Wait(), absl::OkStatus());
  DeviceSet part(1, {0, 2}, orders, NcclOptions());
  submit(part);
  submit(world);
  world.ExpectSums();
  part.ExpectSums();
  world.Shutdown();
  part.Shutdown();
}

}  // namespace
}  // namespace tfring
