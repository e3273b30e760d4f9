// GPU entries between a Start and its Done: the memory that they keep, also if
// no Done follows.  Only the stream of the Done waits for an entry.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/mpi_world.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/runtime/engines.h"
#include "tfring_ops/runtime/handles.h"
#include "tfring_ops/runtime/stream_order.h"

namespace tfring {
namespace {

constexpr int64_t kCount = 20'000;  // More than is packed.

class Memory final : public EntryMemory {
 public:
  explicit Memory(std::atomic<int>& releases) : releases_(releases) {}
  void Release() override { ++releases_; }
  void Keep() override {}

 private:
  std::atomic<int>& releases_;
};

// The objects that a Start creates.
struct Started {
  Handle handle;
  std::weak_ptr<EntryMemory> memory;
  std::weak_ptr<StreamOrder> order;
};

// The framework's stream is the null stream, which is not held back with the
// engine's.
class MpiCudaHandlesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(StartWorld(MPI_Comm_c2f(MPI_COMM_WORLD)), absl::OkStatus());
  }
  static void TearDownTestSuite() { StopEngines(); }

  void SetUp() override {
    device_ = OpenGpu();
    data_.emplace(*device_, Elements(kCount * sizeof(float)));
    StartAndTake("first of all");
    ASSERT_TRUE(Ends());
  }
  void TearDown() override {
    EXPECT_TRUE(Ends());
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    MPI_Barrier(MPI_COMM_WORLD);
  }

  Started Start(const std::string& name) {
    TensorEntry entry;
    entry.request.name = name;
    entry.request.tensors = {{name, {kCount}}};
    entry.buffers = {{data_->data(), data_->data()}};
    auto memory = std::make_shared<Memory>(releases_);
    auto order = StreamOrder::Of(/*stream=*/nullptr, 0, entry).value();
    const Started started = {0, memory, order};
    const Handle handle = Handles::Global()
                              .Start(std::move(entry), kNoHandle,
                                     std::move(memory), std::move(order))
                              .value();
    return {handle, started.memory, started.order};
  }

  static Outcome Take(const Started& started, void* stream) {
    std::promise<Outcome> late;
    std::optional<Outcome> outcome = Handles::Global().Take(
        started.handle, stream,
        [&](Outcome taken) { late.set_value(std::move(taken)); });
    return outcome.has_value() ? *std::move(outcome) : late.get_future().get();
  }

  // When it returns, all earlier entries are launched.  A stream that the tests
  // do not check waits for the entry.
  void StartAndTake(const std::string& name) {
    const Started started = Start(name);
    EXPECT_EQ(Take(started, device_->stream()).status, absl::OkStatus());
  }

  bool Ends() { return StreamEnds(*device_, /*stream=*/nullptr); }
  std::unique_ptr<CudaDevice> device_;
  std::optional<DeviceElements> data_;
  std::atomic<int> releases_{0};  // of entries' memory
};

TEST_F(MpiCudaHandlesTest, MemoryIsReleasedWhenAStreamWaitsForItsLastUse) {
  releases_ = 0;
  const WithFakeCuda held(&fake_cuda::Options::held, fake_cuda::kUrgentStream);
  const Started started = Start("collected");
  const Started later = Start("later");
  const Outcome outcome = Take(later, nullptr);
  EXPECT_EQ(outcome.status, absl::OkStatus());
  EXPECT_EQ(releases_,
            1);  // The first entry still has its memory, though it is launched.
  EXPECT_TRUE(StreamIsHeld(*device_, /*stream=*/nullptr));
  EXPECT_EQ(Take(started, nullptr).status, absl::OkStatus());
  EXPECT_EQ(releases_, 2);
  FakeCuda()->held = 0;
}

TEST_F(MpiCudaHandlesTest, WhatNobodyCollectsIsKeptUntilTheGpuHasDoneIt) {
  Started abandoned, replaced;
  {
    const WithFakeCuda held(&fake_cuda::Options::held,
                            fake_cuda::kUrgentStream);
    abandoned = Start("abandoned");
    replaced = Start("replaced");
    StartAndTake("now they are launched");
    releases_ = 0;
    StartAndTake("replaced");
    EXPECT_EQ(releases_, 1);
    EXPECT_FALSE(abandoned.memory.expired());
    EXPECT_FALSE(replaced.memory.expired());
  }
  ASSERT_EQ(device_->Finish(), absl::OkStatus());
  releases_ = 0;
  const Started next = Start("next");
  EXPECT_EQ(releases_, 2);
  EXPECT_TRUE(replaced.memory.expired());
  EXPECT_TRUE(replaced.order.expired());
  EXPECT_TRUE(abandoned.order.expired());
  EXPECT_EQ(Take(next, nullptr).status, absl::OkStatus());
  // A Done may still collect the abandoned entry.
  EXPECT_EQ(Take(abandoned, nullptr).status, absl::OkStatus());
  EXPECT_TRUE(abandoned.memory.expired());
}

}  // namespace
}  // namespace tfring
