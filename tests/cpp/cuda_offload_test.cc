// Feature maps of a GPU: copies beside its computation, and pinned memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/tier_checks.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/offload/copier.h"
#include "tfring_ops/offload/cuda_copier.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {
namespace {

using Direction = Copier::Direction;
using testing::HasSubstr;

constexpr int64_t kBytes = 4096;
// The longest wait for an event that must happen.
constexpr std::chrono::seconds kLong(30);
// FAKE_CUDA_HELD
constexpr int kFramework = 1, kCopies = 2;

Elements Filled(int value) {
  return Elements(kBytes, static_cast<std::byte>(value));
}

// The framework is this test, and its stream is the null stream.
class CudaCopierTest : public testing::Test {
 protected:
  void SetUp() override {
    auto copier = CudaCopier::Create(0);
    ASSERT_TRUE(copier.ok()) << copier.status();
    copier_ = *std::move(copier);
    for (std::unique_ptr<Tier::Slot>& slot : slots_) {
      auto allocated = tier_->Allocate(kBytes);
      ASSERT_TRUE(allocated.ok()) << allocated.status();
      slot = *std::move(allocated);
      std::memset(slot->memory(), 0, kBytes);
    }
  }
  // No memory is freed while it is copied.
  void TearDown() override { copier_.reset(); }

  std::future<absl::Status> Submit(Direction direction,
                                   const DeviceElements& tensor, int slot) {
    auto ended = std::make_shared<std::promise<absl::Status>>();
    copier_->Submit(direction, nullptr, reinterpret_cast<char*>(tensor.data()),
                    slots_[slot]->memory(), kBytes,
                    [ended](const absl::Status& status) {
                      EXPECT_NE(FakeCuda()->held, kCopies);
                      ended->set_value(status);
                    });
    return ended->get_future();
  }

  // Enqueues a copy like a kernel of the framework, without waiting for its
  // end.
  void Enqueue(const DeviceElements& to, const DeviceElements& from) {
    const CudaDriver& driver = **CudaDriver::Get();
    const CudaScope scope(driver, device_->context());
    ASSERT_EQ(
        driver.cuMemcpyDtoDAsync(DeviceAddress(to.data()),
                                 DeviceAddress(from.data()), kBytes, nullptr),
        absl::OkStatus());
  }
  void FinishFramework() {
    auto event = CudaEvent::Create(*device_);
    ASSERT_TRUE(event.ok()) << event.status();
    ASSERT_EQ((*event)->Record(nullptr), absl::OkStatus());
    ASSERT_TRUE(Await([&] { return (*event)->Done().value(); }));
  }

  Elements InSlot(int slot) const {
    Elements elements(kBytes);
    std::memcpy(elements.data(), slots_[slot]->memory(), kBytes);
    return elements;
  }

  const std::unique_ptr<CudaDevice> device_ = OpenGpu();
  const std::unique_ptr<Tier> tier_ = Tier::MakePinned(0);
  std::unique_ptr<Tier::Slot> slots_[8];
  std::unique_ptr<CudaCopier> copier_;
};

// Neither the GPU nor the copier does anything more by itself.
void ExpectWaits(std::future<absl::Status>& ended) {
  AwaitQuietGpus();
  const auto has_ended = [&] {
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  EXPECT_TRUE(
      Await([&] { return has_ended() || FakeCudaCounts().waiting_hosts > 0; }));
  EXPECT_FALSE(has_ended());
}

void ExpectOkSoon(std::future<absl::Status>& ended) {
  ASSERT_EQ(ended.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(ended.get(), absl::OkStatus());
}

// A copy out waits for the work that writes the tensor.  A copy back waits for
// the earlier work that uses the memory.
TEST_F(CudaCopierTest, ACopyWaitsForTheFrameworksWorkBefore) {
  for (const Direction direction : {Direction::kOut, Direction::kBack}) {
    const DeviceElements memory(*device_, Filled(1)),
        other(*device_, Filled(2));
    std::memset(slots_[0]->memory(), 3, kBytes);
    std::future<absl::Status> ended;
    const bool is_out = direction == Direction::kOut;
    {
      const WithFakeCuda held(&fake_cuda::Options::held, kFramework);
      is_out ? Enqueue(memory, other) : Enqueue(other, memory);
      ended = Submit(direction, memory, 0);
      ExpectWaits(ended);
    }
    ExpectOkSoon(ended);
    EXPECT_EQ(InSlot(0), Filled(is_out ? 2 : 3));
    EXPECT_EQ(memory.Download(), Filled(is_out ? 2 : 3));
    EXPECT_EQ(other.Download(), Filled(is_out ? 2 : 1));
  }
}

// After the copy, the framework reuses the memory of an offloaded tensor, and
// enqueues the consumers of a tensor that is back.
TEST_F(CudaCopierTest, ACopyIsDoneWhenItHasEnded) {
  for (const Direction direction : {Direction::kOut, Direction::kBack}) {
    const DeviceElements memory(*device_, Filled(1)),
        other(*device_, Filled(2));
    std::memset(slots_[0]->memory(), 3, kBytes);
    std::future<absl::Status> ended;
    {
      const WithFakeCuda held(&fake_cuda::Options::held, kCopies);
      ended = Submit(direction, memory, 0);
      FinishFramework();
      ExpectWaits(ended);
    }
    ExpectOkSoon(ended);
    const bool is_out = direction == Direction::kOut;
    is_out ? Enqueue(memory, other) : Enqueue(other, memory);
    FinishFramework();
    EXPECT_EQ(InSlot(0), Filled(is_out ? 1 : 3));
    EXPECT_EQ(other.Download(), Filled(is_out ? 2 : 3));
  }
}

TEST_F(CudaCopierTest, TheFrameworkDoesNotWaitForCopies) {
  const DeviceElements tensor(*device_, Filled(1)), memory(*device_, Filled(2));
  std::future<absl::Status> out, back;
  {
    const WithFakeCuda held(&fake_cuda::Options::held, kCopies);
    out = Submit(Direction::kOut, tensor, 0);
    back = Submit(Direction::kBack, memory, 1);
    ASSERT_NO_FATAL_FAILURE(FinishFramework());
  }
  ExpectOkSoon(out);
  ExpectOkSoon(back);
}

// Several tensors in turn use the same memory, and are copied out and back
// again.
TEST_F(CudaCopierTest, BitsUnderDelays) {
  const WithFakeCuda delay(&fake_cuda::Options::delay_us, 300);
  const DeviceElements one(*device_, Filled(0)), other(*device_, Filled(0));
  const DeviceElements* const memory[] = {&one, &other};
  std::vector<std::unique_ptr<DeviceElements>> made, used;
  for (int i = 0; i < 8; ++i) {
    made.push_back(std::make_unique<DeviceElements>(*device_, Filled(10 + i)));
    used.push_back(std::make_unique<DeviceElements>(*device_, Filled(0)));
  }
  for (int step = 0; step < 10; ++step) {
    std::future<absl::Status> ended[2];
    for (int i = 0; i < 8; ++i) {
      if (i >= 2) ExpectOkSoon(ended[i % 2]);
      Enqueue(*memory[i % 2], *made[i]);
      ended[i % 2] = Submit(Direction::kOut, *memory[i % 2], i);
    }
    for (int i = 7; i >= 0; --i) {
      ExpectOkSoon(ended[i % 2]);
      ended[i % 2] = Submit(Direction::kBack, *memory[i % 2], i);
      ExpectOkSoon(ended[i % 2]);
      Enqueue(*used[i], *memory[i % 2]);
      ended[i % 2] = Submit(Direction::kOut, *memory[i % 2], i);
    }
    for (std::future<absl::Status>& last : ended) ExpectOkSoon(last);
    FinishFramework();
    for (int i = 0; i < 8; ++i) EXPECT_EQ(used[i]->Download(), Filled(10 + i));
  }
}

TEST_F(CudaCopierTest, StreamsHaveTheHighestPriority) {
  EXPECT_EQ(FakeCudaCounts().ordinary_streams, 0);
}

TEST_F(CudaCopierTest, WhatWasSubmittedEndsBeforeTheCopier) {
  const WithFakeCuda delay(&fake_cuda::Options::delay_us, 2000);
  const DeviceElements tensor(*device_, Filled(3));
  std::vector<std::future<absl::Status>> ended;
  for (int slot = 0; slot < 8; ++slot) {
    ended.push_back(Submit(Direction::kOut, tensor, slot));
  }
  copier_.reset();
  for (std::future<absl::Status>& one : ended) {
    ASSERT_EQ(one.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    EXPECT_EQ(one.get(), absl::OkStatus());
  }
  EXPECT_EQ(InSlot(7), Filled(3));
}

// A GPU that no other test uses: its context ends.
constexpr int kEndedGpu = 7;

TEST(CudaCopierFailureTest, CopiesEndWithTheErrorOfTheirContext) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, kEndedGpu + 1);
  const CudaDriver& driver = **CudaDriver::Get();
  auto copier = CudaCopier::Create(kEndedGpu);
  ASSERT_TRUE(copier.ok()) << copier.status();
  const std::unique_ptr<Tier> tier = Tier::MakePinned(kEndedGpu);
  auto slot = tier->Allocate(kBytes);
  ASSERT_TRUE(slot.ok()) << slot.status();
  CUcontext context = nullptr;
  ASSERT_EQ(driver.cuDevicePrimaryCtxRetain(&context, kEndedGpu),
            absl::OkStatus());
  const CudaScope scope(driver, context);
  CUdeviceptr memory = 0;
  ASSERT_EQ(driver.cuMemAlloc(&memory, kBytes), absl::OkStatus());

  auto submit = [&] {
    auto ended = std::make_shared<std::promise<absl::Status>>();
    (*copier)->Submit(
        Direction::kOut, nullptr, static_cast<char*>(DeviceMemory(memory)),
        (*slot)->memory(), kBytes,
        [ended](const absl::Status& status) { ended->set_value(status); });
    return ended->get_future();
  };
  std::future<absl::Status> ended;
  {
    const WithFakeCuda held(&fake_cuda::Options::held, kFramework);
    LaunchSum(driver, /*to=*/0, /*from=*/0, 1, /*stream=*/nullptr);
    ended = submit();
  }
  ASSERT_EQ(ended.wait_for(kLong), std::future_status::ready);
  EXPECT_THAT(ended.get().message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  // After a failure no copy begins.
  ended = submit();
  ASSERT_EQ(ended.wait_for(kLong), std::future_status::ready);
  EXPECT_THAT(ended.get().message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST(PinnedTierTest, IsPinnedAndDoesNotGrow) {
  const std::unique_ptr<CudaDevice> device = OpenGpu();
  const CudaDriver& driver = **CudaDriver::Get();
  const CudaScope scope(driver, device->context());
  const std::unique_ptr<Tier> tier = Tier::MakePinned(0);
  CheckTierDoesNotGrow(*tier, [&](Tier::Slot& slot) {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver.cuMemHostGetDevicePointer(&address, slot.memory(), 0),
              absl::OkStatus());
  });
}

}  // namespace
}  // namespace tfring
