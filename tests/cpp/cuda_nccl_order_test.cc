// Several process sets on the same GPUs, each with a communicator of NCCL's:
// whatever their engines do first, all ranks launch in one order.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "tests/cpp/device_sets.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_engines.h"
#include "tests/cpp/nccl_ranks.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/nccl/launch_order.h"

namespace tfring {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Options SetOptions(double timeout_seconds = 20) {
  Options options = NcclOptions();
  options.stall_shutdown_seconds = timeout_seconds;
  return options;
}

// Of two process sets each rank pauses before another one's launch.
std::vector<absl::Status> LaunchTwo(bool ordered, milliseconds pause,
                                    double timeout_seconds) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, 2);
  const Orders orders = MakeOrders(2);
  if (ordered) {
    for (const auto& order : orders) order->Begin();
  }
  DeviceSet world(0, {0, 1}, orders, SetOptions(timeout_seconds));
  DeviceSet same(1, {0, 1}, orders, SetOptions(timeout_seconds));
  // The first makes the lanes, and meets no other.
  for (DeviceSet* const set : {&world, &same}) {
    set->Submit([](int) { return microseconds(); });
    set->ExpectSums();
  }
  world.Submit([&](int index) { return pause * (index == 0 ? 1 : 0); });
  same.Submit([&](int index) { return pause * (index == 1 ? 1 : 0); });
  std::vector<absl::Status> outcomes = world.Outcomes();
  for (absl::Status& status : same.Outcomes()) outcomes.push_back(status);
  if (ordered) {
    world.ExpectSums();
    same.ExpectSums();
  }
  world.Shutdown();
  same.Shutdown();
  return outcomes;
}

// If they do so without an order, and one is told this.  On a machine with much
// else to do a short pause may not make the orders differ.
bool WithoutAnOrderOneIsTold(absl::string_view text) {
  for (const int pause_ms : {200, 800, 3200}) {
    for (const absl::Status& status :
         LaunchTwo(false, milliseconds(pause_ms), 1 + pause_ms / 500.0)) {
      if (absl::StrContains(status.message(), text)) return true;
    }
  }
  return false;
}

TEST(CudaNcclOrderTest, RanksAgreeOnWhoLaunchesFirst) {
  for (const absl::Status& status : LaunchTwo(true, milliseconds(200), 20)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

// What the fake NCCL is for: the order is needed, and its absence seen.
TEST(CudaNcclOrderTest, WithoutAnOrderItIsAnError) {
  EXPECT_TRUE(WithoutAnOrderOneIsTold("launched in different orders"));
}

TEST(CudaNcclOrderTest, OrADeadlock) {
  const WithFakeNccl any(&fake_nccl::Options::any_order, 1);
  EXPECT_TRUE(WithoutAnOrderOneIsTold("NCCL has waited"));
}

// Keeps the null stream of the GPU busy.
void Delay(int gpu) {
  const auto device = OpenGpu(gpu);
  const CudaScope scope(**CudaDriver::Get(), device->context());
  static const auto launch =
      reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(
          FakeCudaFunction("cuLaunchHostFunc"));
  const auto sleep = [](void*) {
    std::this_thread::sleep_for(milliseconds(300));
  };
  EXPECT_EQ(launch(nullptr, sleep, nullptr), 0);
}

// What is launched first begins first, also where its tensor comes late.
TEST(CudaNcclOrderTest, HoldsOnTheGpuToo) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, 2);
  const auto keep = {OpenGpu(0), OpenGpu(1)};
  const Orders orders = MakeOrders(2);
  for (const auto& order : orders) order->Begin();
  DeviceSet world(0, {0, 1}, orders, SetOptions(5));
  DeviceSet same(1, {0, 1}, orders, SetOptions(5));
  for (DeviceSet* const set : {&world, &same}) {
    set->Submit([](int) { return microseconds(); });
    set->ExpectSums();
  }
  same.Submit([](int) { return milliseconds(100); });
  Delay(0);
  world.Submit([](int) { return microseconds(); });
  world.ExpectSums();
  same.ExpectSums();
  world.Shutdown();
  same.Shutdown();
}

// Sets that share one rank, several or all, each at its own pace; and streams
// that are late by turns.
TEST(CudaNcclOrderTest, SetsOfAllKindsAtOnce) {
  constexpr int kSize = 4;
  const WithFakeCuda devices(&fake_cuda::Options::devices, kSize);
  for (const int delay_us : {0, 2000}) {
    const WithFakeCuda slow(&FakeOptions::delay_us, delay_us);
    const Orders orders = MakeOrders(kSize);
    for (const auto& order : orders) order->Begin();
    std::vector<std::unique_ptr<DeviceSet>> sets;
    const std::vector<std::vector<int32_t>> ranks = {
        {0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {0, 3}};
    for (size_t id = 0; id < ranks.size(); ++id) {
      sets.push_back(std::make_unique<DeviceSet>(
          static_cast<int>(id), ranks[id], orders, SetOptions()));
    }
    std::mt19937 random(delay_us);
    for (int round = 0; round < 10; ++round) {
      for (const auto& set : sets) {
        set->Submit([&](int) { return microseconds(random() % 2000); });
      }
    }
    for (const auto& set : sets) set->ExpectSums();
    for (const auto& set : sets) set->Shutdown();
  }
}

// The first set beside the world comes while that one works.
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
  DeviceSet world(0, {0, 1, 2}, orders, SetOptions());
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
  DeviceSet part(1, {0, 2}, orders, SetOptions());
  submit(part);
  submit(world);
  world.ExpectSums();
  part.ExpectSums();
  world.Shutdown();
  part.Shutdown();
}

}  // namespace
}  // namespace tfring
