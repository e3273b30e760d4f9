// XLA's custom calls on a GPU, called as XLA enqueues a program: the host never
// waits for the stream.  Some tests also cover the custom calls on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/fake_xla.h"
#include "tests/cpp/mpi_world.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/ffi/handlers.h"
#include "tfring_ops/runtime/engines.h"

namespace tfring {
namespace {

class MpiCudaFfiTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(StartWorld(MPI_Comm_c2f(MPI_COMM_WORLD)), absl::OkStatus());
  }
  static void TearDownTestSuite() { StopEngines(); }

  void SetUp() override {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    device_ = OpenGpu();
    stream_ = device_->stream();
  }
  void TearDown() override {
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    MPI_Barrier(MPI_COMM_WORLD);
  }

  // `count` times `value`.
  static Elements Equal(int64_t count, float value) {
    const std::vector<float> values(count, value);
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return {bytes, bytes + values.size() * sizeof(float)};
  }

  static XlaBuffer Buffer(const DeviceElements& elements, int64_t count) {
    return {XLA_FFI_DataType_F32, elements.data(), {count}};
  }
  // The value of a handle, which is never read nor written.
  static XlaBuffer Handle() { return {XLA_FFI_DataType_S64, nullptr, {}}; }

  static std::string Request(const std::string& name) {
    CollectiveRequest allreduce;
    allreduce.name = name;
    allreduce.dtype = DataType::kFloat32;
    allreduce.op = ReduceOp::kSum;
    allreduce.tensors.push_back({name + "/0", {}});
    return Encode(allreduce);
  }

  // On XLA's stream.
  absl::Status Start(const std::string& name, const XlaBuffer& buffer,
                     const std::string& place) {
    return Start(name, buffer, buffer, place);
  }
  absl::Status Start(const std::string& name, const XlaBuffer& operand,
                     const XlaBuffer& result, const std::string& place) {
    return CallHandler(tfring_cuda_start, stream_, 0, {operand, Handle()},
                       {result, Handle()},
                       {{"place", place}, {"request", Request(name)}});
  }
  absl::Status Done(const XlaBuffer& buffer) { return Done(buffer, stream_); }
  absl::Status Done(const XlaBuffer& operand, const XlaBuffer& result) {
    return CallHandler(tfring_cuda_done, stream_, 0,
                       {operand, Handle(), Handle()}, {result, Handle()}, {});
  }
  absl::Status Done(const XlaBuffer& buffer, void* stream) {
    return CallHandler(tfring_cuda_done, stream, 0,
                       {buffer, Handle(), Handle()}, {buffer, Handle()}, {});
  }

  // Makes the engine's lane by a first reduction.  Then XLA uses another
  // stream, which is not held back with the engine's.
  void MakeLane(const XlaBuffer& buffer) {
    ASSERT_EQ(Start("before", buffer, "first"), absl::OkStatus());
    ASSERT_EQ(Done(buffer), absl::OkStatus());
    ASSERT_EQ(device_->Finish(), absl::OkStatus());
    stream_ = nullptr;
  }

  bool Ends() { return StreamEnds(*device_, stream_); }
  bool IsHeld() { return StreamIsHeld(*device_, stream_); }

  // The sum of rank + 1 over all ranks.
  float Sum() const { return static_cast<float>(size_ * (size_ + 1) / 2); }

  int rank_ = 0, size_ = 0;
  std::unique_ptr<CudaDevice> device_;
  void* stream_ = nullptr;  // XLA's
};

// Steps of a training: kernels before the starts and after the dones, on XLA's
// stream, which the host does not wait for.
TEST_F(MpiCudaFfiTest, ChainsOfStartsInALoop) {
  const WithFakeCuda delay(&fake_cuda::Options::delay_us, 300);
  const std::vector<int64_t> counts = {7, 50'000, 1000};
  std::deque<DeviceElements> own, gradients, weights;
  for (const int64_t count : counts) {
    own.emplace_back(*device_, Equal(count, static_cast<float>(rank_ + 1)));
    gradients.emplace_back(*device_, Equal(count, 0));
    weights.emplace_back(*device_, Equal(count, 0));
  }
  constexpr int kSteps = 10;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < counts.size(); ++i) {
      device_->kernels().Copy(gradients[i].data(), own[i].data(),
                              counts[i] * static_cast<int64_t>(sizeof(float)));
      ASSERT_EQ(Start("gradient " + std::to_string(i),
                      Buffer(gradients[i], counts[i]), i == 0 ? "first" : ""),
                absl::OkStatus());
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(Done(Buffer(gradients[i], counts[i])), absl::OkStatus());
      device_->kernels().Reduce(weights[i].data(), weights[i].data(),
                                gradients[i].data(), counts[i],
                                DataType::kFloat32, ReduceOp::kSum);
    }
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(weights[i].Download(), Equal(counts[i], kSteps * Sum()));
  }
}

TEST_F(MpiCudaFfiTest, AnErrorOfAllRanksIsTheDonesAndTheNextStepGoesOn) {
  const int64_t count = 10 + rank_;
  const DeviceElements unequal(*device_, Equal(count, 1));
  ASSERT_EQ(Start("unequal", Buffer(unequal, count), "first"),
            absl::OkStatus());
  const absl::Status status = Done(Buffer(unequal, count));
  if (size_ > 1) {
    EXPECT_THAT(status, HasMessage("shapes differ"));
  }
  const DeviceElements equal(*device_,
                             Equal(10, static_cast<float>(rank_ + 1)));
  ASSERT_EQ(Start("equal", Buffer(equal, 10), "first"), absl::OkStatus());
  ASSERT_EQ(Done(Buffer(equal, 10)), absl::OkStatus());
  EXPECT_EQ(equal.Download(), Equal(10, Sum()));
}

// Backpropagation goes on beside a reduction that takes long.
TEST_F(MpiCudaFfiTest, OnlyADoneWaitsForAReduction) {
  // More than is packed: memory for a pack would wait for the held stream.
  constexpr int64_t kCount = 20'000;
  const auto own = Equal(kCount, static_cast<float>(rank_ + 1));
  const DeviceElements first(*device_, own), second(*device_, own);
  MakeLane(Buffer(first, kCount));
  ASSERT_EQ(device_->Upload(first.data(), own.data(), kCount * 4),
            absl::OkStatus());
  {
    const WithFakeCuda held(&fake_cuda::Options::held,
                            fake_cuda::kUrgentStream);
    ASSERT_EQ(Start("a", Buffer(first, kCount), "first"), absl::OkStatus());
    ASSERT_EQ(Start("b", Buffer(second, kCount), ""), absl::OkStatus());
    // Both are launched when it returns; and another stream waits for one.
    ASSERT_EQ(Done(Buffer(second, kCount), device_->stream()),
              absl::OkStatus());
    EXPECT_TRUE(Ends());
    ASSERT_EQ(Done(Buffer(first, kCount)), absl::OkStatus());
    EXPECT_TRUE(IsHeld());
  }
  EXPECT_TRUE(Ends());
  EXPECT_EQ(first.Download(), Equal(kCount, Sum()));
  EXPECT_EQ(second.Download(), Equal(kCount, Sum()));
}

// After an error, XLA reuses the memory of the step.
TEST_F(MpiCudaFfiTest, ADoneThatFailsWaitsForAllThatNobodyCollects) {
  const DeviceElements first(*device_, Equal(10, 1));
  const DeviceElements second(*device_, Equal(10, 1));
  MakeLane(Buffer(first, 10));
  {
    const WithFakeCuda held(&fake_cuda::Options::held,
                            fake_cuda::kUrgentStream);
    ASSERT_EQ(Start("twice", Buffer(first, 10), "first"), absl::OkStatus());
    ASSERT_EQ(Start("twice", Buffer(second, 10), ""), absl::OkStatus());
    EXPECT_TRUE(Ends());
    EXPECT_THAT(Done(Buffer(second, 10)), HasMessage("Give each its own name"));
    EXPECT_TRUE(IsHeld());
  }
  EXPECT_TRUE(Ends());
  ASSERT_EQ(Done(Buffer(first, 10)), absl::OkStatus());
}

// The places where a handler can detect that XLA has moved a tensor.  After the
// error XLA reuses the memory of the chain, so its stream must wait for the
// whole chain.
enum class Moved { kDone, kResultOfDone, kResultOfStart };
class MpiCudaFfiMovedTest : public MpiCudaFfiTest,
                            public testing::WithParamInterface<Moved> {};
INSTANTIATE_TEST_SUITE_P(Moves, MpiCudaFfiMovedTest,
                         testing::Values(Moved::kDone, Moved::kResultOfDone,
                                         Moved::kResultOfStart));

TEST_P(MpiCudaFfiMovedTest, ItsErrorWaitsForTheChain) {
  constexpr int64_t kCount = 20'000;  // see OnlyADoneWaitsForAReduction
  const auto own = Equal(kCount, 1);
  const DeviceElements first(*device_, own), second(*device_, own),
      there(*device_, own);
  const XlaBuffer a = Buffer(first, kCount), b = Buffer(second, kCount),
                  moved = Buffer(there, kCount);
  MakeLane(a);
  {
    const WithFakeCuda held(&fake_cuda::Options::held,
                            fake_cuda::kUrgentStream);
    ASSERT_EQ(Start("a", a, "first"), absl::OkStatus());
    ASSERT_EQ(Start("b", b, ""), absl::OkStatus());
    EXPECT_TRUE(Ends());
    const absl::Status status = GetParam() == Moved::kDone ? Done(moved)
                                : GetParam() == Moved::kResultOfDone
                                    ? Done(a, moved)
                                    : Start("c", moved, a, "");
    EXPECT_THAT(status,
                HasMessage("XLA moved a tensor in the middle of a reduction"));
    EXPECT_TRUE(IsHeld());
  }
  EXPECT_TRUE(Ends());
  ASSERT_EQ(Start("after", a, "first"), absl::OkStatus());
  ASSERT_EQ(Done(a), absl::OkStatus());
}

// XLA replaces each empty value with a constant, which is somewhere else.
TEST_F(MpiCudaFfiTest, AnEmptyTensorMayMove) {
  const DeviceElements here(*device_, Equal(1, 0)),
      there(*device_, Equal(1, 0));
  const XlaBuffer a = Buffer(here, 0), b = Buffer(there, 0);
  ASSERT_EQ(Start("empty", a, b, "first"), absl::OkStatus());
  EXPECT_EQ(Done(a, b), absl::OkStatus());
}

// Earlier collectives may still be in flight; this is no reason to fail.
TEST_F(MpiCudaFfiTest, AWriteElsewhereCopiesTheWhole) {
  std::vector<float> whole = {1, 2, 3, 4, 5}, there(5), share = {7, 8};
  const auto buffer = [](std::vector<float>& data) {
    return XlaBuffer{
        XLA_FFI_DataType_F32, data.data(), {static_cast<int64_t>(data.size())}};
  };
  for (std::vector<float>* const result : {&there, &whole}) {
    ASSERT_EQ(CallHandler(tfring_host_write, nullptr, 0,
                          {buffer(whole), buffer(share)}, {buffer(*result)},
                          {{"begin", int64_t{2}}}),
              absl::OkStatus());
    EXPECT_EQ(*result, (std::vector<float>{1, 2, 7, 8, 5}));
  }
}

TEST_F(MpiCudaFfiTest, APlaceWritesTheShareAlone) {
  std::vector<float> whole = {1, 2, 3, 4, 5}, share = {7, 8};
  int64_t handle = 0;
  const auto buffer = [](std::vector<float>& data) {
    return XlaBuffer{
        XLA_FFI_DataType_F32, data.data(), {static_cast<int64_t>(data.size())}};
  };
  const auto place = [&](int64_t begin) {
    return CallHandler(
        tfring_host_place, nullptr, 0,
        {buffer(share), XlaBuffer{XLA_FFI_DataType_S64, &handle, {}}},
        {buffer(whole)}, {{"begin", begin}});
  };
  ASSERT_EQ(place(3), absl::OkStatus());
  EXPECT_EQ(whole, (std::vector<float>{1, 2, 3, 7, 8}));
  EXPECT_FALSE(place(4).ok());
}

// The remaining ranks call the last start of the chain only after rank 0 has
// failed.
TEST_F(MpiCudaFfiTest, OnTheHostTooAnErrorWaitsForTheChain) {
  std::vector<float> first(10, 1), second(10, 1), there(10, 1);
  int64_t none = 0, last = 0, handle_of_a = 0, handle_of_b = 0;
  const auto buffer = [](std::vector<float>& data) {
    return XlaBuffer{XLA_FFI_DataType_F32, data.data(), {10}};
  };
  const auto handle = [](int64_t& number) {
    return XlaBuffer{XLA_FFI_DataType_S64, &number, {}};
  };
  const auto start = [&](const std::string& name, std::vector<float>& data,
                         int64_t& previous, int64_t& own) {
    return CallHandler(
        tfring_host_start, nullptr, 0, {buffer(data), handle(previous)},
        {buffer(data), handle(own)}, {{"request", Request(name)}});
  };
  const auto done = [&](std::vector<float>& data, int64_t& own) {
    return CallHandler(tfring_host_done, nullptr, 0,
                       {buffer(data), handle(own), handle(handle_of_b)},
                       {buffer(data), handle(last)}, {});
  };
  ASSERT_EQ(start("host a", first, none, handle_of_a), absl::OkStatus());
  std::future<absl::Status> failed;
  if (rank_ == 0) {
    ASSERT_EQ(start("host b", second, handle_of_a, handle_of_b),
              absl::OkStatus());
    failed = std::async(std::launch::async,
                        [&] { return done(there, handle_of_a); });
    if (size_ > 1) {
      EXPECT_EQ(failed.wait_for(std::chrono::seconds(0)),
                std::future_status::timeout);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank_ == 0) {
    ASSERT_EQ(failed.wait_for(std::chrono::minutes(1)),
              std::future_status::ready);
    EXPECT_THAT(failed.get(), HasMessage("XLA moved"));
  } else {
    ASSERT_EQ(start("host b", second, handle_of_a, handle_of_b),
              absl::OkStatus());
    EXPECT_EQ(done(first, handle_of_a), absl::OkStatus());
  }
  EXPECT_EQ(done(second, handle_of_b), absl::OkStatus());
  EXPECT_EQ(second, std::vector<float>(10, static_cast<float>(size_)));
}

}  // namespace
}  // namespace tfring
