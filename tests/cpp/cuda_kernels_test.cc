// The kernels for GPUs against those for the host.  The fake driver tests the
// code around the kernels; a real GPU tests the kernels too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/interesting_elements.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/engine/execution/neutral_contribution.h"
#include "tfring_ops/kernels/cuda_cubins.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

// To the bit, but for the sign and payload of a NaN.
void ExpectSame(DataType dtype, const Elements& a, const Elements& b) {
  ASSERT_EQ(a.size(), b.size());
  ExpectSameBits(dtype, a.data(), b.data(),
                 static_cast<int64_t>(a.size()) / SizeInBytes(dtype),
                 /*any_nan=*/true);
}

class CudaKernelsTest : public testing::Test {
 protected:
  const std::unique_ptr<CudaDevice> gpu_ = OpenGpu();
  const Kernels& kernels_ = gpu_->kernels();
};

TEST_F(CudaKernelsTest, TheNeutralContributionIsOnTheGpu) {
  constexpr int64_t kCount = 70001;
  for (const DataType dtype : kDataTypes) {
    CollectiveRequest request;
    request.dtype = dtype;
    request.device = 0;
    request.tensors = {{"", {kCount}}, {"", {}}, {"", {0}}};
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
      request.op = op;
      NeutralContribution contribution(request);
      ASSERT_EQ(contribution.Allocate(kernels_), absl::OkStatus());
      const auto values = AllreduceInput(dtype, op, kCount, 0);
      const DeviceElements result(*gpu_, values);
      kernels_.Reduce(result.data(), result.data(),
                      contribution.entry().buffers[0].input, kCount, dtype, op);
      EXPECT_TRUE(result.Download() == values)
          << Name(op) << " of " << Name(dtype);
    }
    request.kind = CollectiveKind::kAllgather;
    request.tensors.pop_back();
    request.tensors.pop_back();
    NeutralContribution contribution(request);
    ASSERT_EQ(contribution.Allocate(kernels_), absl::OkStatus());
    const auto gathered = contribution.entry().allocate_output(0, {kCount});
    ASSERT_TRUE(gathered.ok()) << gathered.status();
    kernels_.Upload(*gathered, std::vector<std::byte>(kCount).data(), kCount);
    EXPECT_EQ(kernels_.Synchronize(), absl::OkStatus());
  }
}

TEST_F(CudaKernelsTest, HasAName) {
  EXPECT_EQ(gpu_->ordinal(), 0);
  EXPECT_FALSE(gpu_->name().empty());
  EXPECT_GE(CudaDeviceCount().value(), 1);
}

TEST_F(CudaKernelsTest, AGpuThatIsNotThereIsAnError) {
  const auto device = CudaDevice::ForOrdinal(1000);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(device.status(), HasMessage("CUDA_VISIBLE_DEVICES"));
}

TEST_F(CudaKernelsTest, WhatTheCompilerSaysIsInTheError) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real compiler is there";
  const WithFakeCuda no_compiler(&fake_cuda::Options::no_compiler, 1);
  // The library has no code for a GPU of this capability.
  const WithFakeCuda old_gpu(&fake_cuda::Options::capability, 52);
  EXPECT_THAT(CudaDevice::ForOrdinal(0).status(),
              HasMessage("the fake compiler is lost"));
}

TEST(CudaCubinsTest, AreOfTheGenerationAndNoNewer) {
  const std::vector<CudaCubin> cubins = {
      {60, nullptr}, {80, nullptr}, {86, nullptr}, {120, nullptr}};
  const auto chosen = [&](int capability) {
    const CudaCubin* const cubin = CubinFor(capability, cubins);
    return cubin == nullptr ? 0 : cubin->capability;
  };
  EXPECT_EQ(chosen(52), 0);
  EXPECT_EQ(chosen(60), 60);
  EXPECT_EQ(chosen(62), 60);
  EXPECT_EQ(chosen(75), 0);
  EXPECT_EQ(chosen(80), 80);
  EXPECT_EQ(chosen(86), 86);
  EXPECT_EQ(chosen(89), 86);
  EXPECT_EQ(chosen(90), 0);
  EXPECT_EQ(chosen(121), 120);
}

// With code for the GPU the driver compiles nothing, and needs no compiler.
TEST_F(CudaKernelsTest, CodeThatIsBuiltInIsNotCompiled) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real GPU does not count them";
  std::atomic<int64_t>& compiled = FakeCudaCounts().compiled_modules;
  for (const int capability : {52, 61, 70, 75, 86, 90, 100, 103, 121, 140}) {
    const bool built_in = CubinFor(capability, CudaCubins()) != nullptr;
    const WithFakeCuda option(&fake_cuda::Options::capability, capability);
    const WithFakeCuda no_compiler(&fake_cuda::Options::no_compiler, built_in);
    const int64_t before = compiled;
    const auto device = CudaDevice::ForOrdinal(0);
    ASSERT_TRUE(device.ok()) << capability << device.status();
    EXPECT_EQ(compiled - before, built_in ? 0 : 1) << capability;
    if (CudaCubins().empty()) continue;
    EXPECT_EQ(built_in, capability != 52 && capability != 140) << capability;
  }
}

TEST_F(CudaKernelsTest, CodeThatTheDriverDoesNotTakeIsCompiledAgain) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real driver takes it";
  if (CudaCubins().empty()) GTEST_SKIP() << "none is built in";
  const WithFakeCuda old_driver(&fake_cuda::Options::no_code, 1);
  EXPECT_TRUE(CudaDevice::ForOrdinal(0).ok());
  const WithFakeCuda no_compiler(&fake_cuda::Options::no_compiler, 1);
  EXPECT_THAT(CudaDevice::ForOrdinal(0).status(),
              testing::AllOf(HasMessage("the fake compiler is lost"),
                             HasMessage("compiled for 9.0")));
}

TEST_F(CudaKernelsTest, AnEventNeedsNoKernels) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real GPU does not count them";
  const int64_t before = FakeCudaCounts().loaded_modules;
  const auto event = CudaEvent::CreateOn(0);
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ((*event)->Record(gpu_->stream()), absl::OkStatus());
  EXPECT_EQ(FakeCudaCounts().loaded_modules, before);
}

TEST_F(CudaKernelsTest, ReducesAsTheHostDoes) {
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (const int64_t count : {0, 1, 7, 10'003}) {
        const Elements a = InterestingElements(dtype, count, 1);
        const Elements b = InterestingElements(dtype, count, 2);
        Elements expected(a.size());
        CpuKernels().Reduce(expected.data(), a.data(), b.data(), count, dtype,
                            op);
        // Aligned to vectors, and to elements alone.
        for (const int64_t offset : {int64_t{0}, SizeInBytes(dtype)}) {
          const DeviceElements device_a(*gpu_, a, offset);
          const DeviceElements device_b(*gpu_, b);
          kernels_.Reduce(device_a.data(), device_a.data(), device_b.data(),
                          count, dtype, op);
          ExpectSame(dtype, device_a.Download(), expected);
        }
      }
    }
  }
  EXPECT_EQ(kernels_.Synchronize(), absl::OkStatus());
}

TEST_F(CudaKernelsTest, ScalesAsTheHostDoes) {
  for (const DataType dtype : kDataTypes) {
    for (const double factor : {1.0, 1.0 / 3, 1.0 / 49, -7.5, 1e30, HUGE_VAL}) {
      for (const int64_t count : {0, 1, 7, 1'003}) {
        const Elements input = InterestingElements(dtype, count, 3);
        Elements expected(input.size());
        CpuKernels().Scale(expected.data(), input.data(), count, dtype, factor);
        const DeviceElements device(*gpu_, input);
        kernels_.Scale(device.data(), count, dtype, factor);
        ExpectSame(dtype, device.Download(), expected);
      }
    }
  }
}

// Copies more pieces than one launch takes.  Their lengths are near the length
// of a vector or of a tile; some are aligned and some are not.
TEST_F(CudaKernelsTest, CopiesPiecesAsTheHostDoes) {
  constexpr int64_t kCounts[] = {0, 1, 7, 8, 65, 2048, 4099, 33'001};
  constexpr int kPieces = 131;
  for (const DataType from : kDataTypes) {
    for (const DataType to : kDataTypes) {
      if (!(CanTravelAs(from, to) || CanTravelAs(to, from))) continue;
      int64_t count = 0;
      for (int i = 0; i < kPieces; ++i) count += kCounts[i % 8];
      const Elements input = InterestingElements(from, count, 5);
      const DeviceElements device_input(*gpu_, input);
      for (const double factor : {1.0, 1.0 / 3}) {
        Elements expected(count * SizeInBytes(to));
        const DeviceElements output(*gpu_, expected);
        // The pieces are listed from the last to the first.
        std::vector<CopyPiece> on_host, on_gpu;
        int64_t first = 0;
        for (int i = 0; i < kPieces; ++i) {
          const int64_t length = kCounts[i % 8];
          const int64_t target = (count - first - length) * SizeInBytes(to);
          const int64_t source = first * SizeInBytes(from);
          on_host.push_back(
              {input.data() + source, expected.data() + target, length});
          on_gpu.push_back(
              {device_input.data() + source, output.data() + target, length});
          first += length;
        }
        CpuKernels().CopyPieces(on_host, from, to, factor);
        kernels_.CopyPieces(on_gpu, from, to, factor);
        SCOPED_TRACE(std::string("from ") + Name(from));
        ExpectSame(to, output.Download(), expected);
      }
    }
  }
  kernels_.CopyPieces({}, DataType::kInt8, DataType::kInt8, 1.0);
  EXPECT_EQ(kernels_.Synchronize(), absl::OkStatus());
}

// Bytes at any distance from a vector's border, also from each other's.
TEST_F(CudaKernelsTest, CopiesBytesFromAnywhereToAnywhere) {
  constexpr int64_t kRoom = 96;
  const Elements input = InterestingElements(DataType::kUint8, kRoom, 7);
  const DeviceElements from(*gpu_, input);
  for (int64_t source = 0; source < 17; ++source) {
    for (int64_t target = 0; target < 17; ++target) {
      for (const int64_t bytes : {1, 3, 15, 16, 33, 79}) {
        Elements expected(kRoom, std::byte{0x5a});
        std::copy_n(&input[source], bytes, &expected[target]);
        const DeviceElements to(*gpu_, Elements(kRoom, std::byte{0x5a}));
        const CopyPiece piece = {from.data() + source, to.data() + target,
                                 bytes};
        kernels_.CopyPieces(absl::MakeConstSpan(&piece, 1), DataType::kInt8,
                            DataType::kInt8, 1.0);
        ASSERT_EQ(to.Download(), expected)
            << bytes << " from " << source << " to " << target;
      }
    }
  }
}

// Backpropagation keeps most of the GPU.
TEST_F(CudaKernelsTest, AGridHas64BlocksAtMost) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real GPU does not count them";
  constexpr int64_t kCount = 4 << 20;
  const DeviceElements data(*gpu_, Elements(kCount));
  std::atomic<int64_t>& blocks = FakeCudaCounts().most_blocks;
  for (const int64_t count : {kCount / 16, kCount}) {
    blocks = 0;
    kernels_.Reduce(data.data(), data.data(), data.data(), count,
                    DataType::kUint8, ReduceOp::kSum);
    EXPECT_EQ(blocks, count == kCount ? 64 : 32);
    blocks = 0;
    kernels_.Scale(data.data(), count, DataType::kUint8, 0.5);
    EXPECT_EQ(blocks, count == kCount ? 64 : 8);
  }
  EXPECT_EQ(gpu_->Finish(), absl::OkStatus());
}

// The GPU does not read the caller's pieces when it gets to the launch.
TEST_F(CudaKernelsTest, PiecesAreOneLaunchAndNobodyKeepsThem) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real GPU does not count them";
  const Elements input = InterestingElements(DataType::kUint16, 1000, 6);
  const DeviceElements from(*gpu_, input);
  const DeviceElements to(*gpu_, Elements(2000));
  const WithFakeCuda one(&fake_cuda::Options::launches_left, 1);
  const WithFakeCuda slow(&fake_cuda::Options::delay_us, 1000);
  {
    std::vector<CopyPiece> pieces;
    for (int64_t i = 0; i < 100; ++i) {
      pieces.push_back({from.data() + i * 20, to.data() + i * 20, 10});
    }
    kernels_.CopyPieces(pieces, DataType::kUint16, DataType::kUint16, 1.0);
    std::fill(pieces.begin(), pieces.end(), CopyPiece{});
  }
  EXPECT_EQ(kernels_.Synchronize(), absl::OkStatus());
  EXPECT_EQ(to.Download(), input);
}

TEST_F(CudaKernelsTest, CopiesInTheOrderOfTheStream) {
  const Elements input = InterestingElements(DataType::kUint8, 1001, 4);
  const DeviceElements from(*gpu_, input);
  const DeviceElements to(*gpu_, Elements(1001));
  kernels_.Copy(to.data(), from.data(), 1000);
  kernels_.Copy(from.data(), from.data(), 1000);
  kernels_.Copy(from.data(), to.data() + 1000, 1);
  Elements expected = input;
  expected[1000] = std::byte{0};
  EXPECT_EQ(to.Download(), expected);
  EXPECT_EQ(from.Download()[0], std::byte{0});
}

TEST_F(CudaKernelsTest, AdasumIsTheHosts) {
  for (const DataType dtype : kFloatTypes) {
    const auto random = [&](int rank) {
      return MakeElements(dtype, 1001, [rank](auto type, int64_t i) {
        return RandomElement<decltype(type)>(rank, i);
      });
    };
    const Elements a = random(0), b = random(1);
    Elements expected(a.size());
    CpuKernels().Adasum(expected.data(), a.data(), b.data(), 1001, dtype);
    const DeviceElements device_a(*gpu_, a), device_b(*gpu_, b);
    kernels_.Adasum(device_b.data(), device_a.data(), device_b.data(), 1001,
                    dtype);
    EXPECT_EQ(device_b.Download(), expected) << Name(dtype);
  }
}

TEST_F(CudaKernelsTest, NobodyWaitsForTheGpu) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real GPU is too fast";
  const DeviceElements data(*gpu_, Elements(4000));
  const auto done = CudaEvent::Create(*gpu_).value();
  const WithFakeCuda slow(&fake_cuda::Options::delay_us, 200'000);
  for (int i = 0; i < 4; ++i) {
    kernels_.Reduce(data.data(), data.data(), data.data(), 1000,
                    DataType::kFloat32, ReduceOp::kSum);
  }
  EXPECT_EQ(kernels_.Synchronize(), absl::OkStatus());
  ASSERT_EQ(done->Record(gpu_->stream()), absl::OkStatus());
  EXPECT_FALSE(done->Done().value());
  EXPECT_EQ(gpu_->Finish(), absl::OkStatus());
  EXPECT_TRUE(done->Done().value());
}

TEST_F(CudaKernelsTest, OneStreamWaitsForAnother) {
  const auto other = OpenGpu();
  const DeviceElements data(*gpu_, Elements(1000, std::byte{1}));
  const DeviceElements seen(*gpu_, Elements(1000));
  const auto ready = CudaEvent::Create(*gpu_).value();
  for (int turn = 0; turn < 10; ++turn) {
    kernels_.Reduce(data.data(), data.data(), data.data(), 1000,
                    DataType::kUint8, ReduceOp::kSum);
    ASSERT_EQ(ready->Record(gpu_->stream()), absl::OkStatus());
    ASSERT_EQ(ready->Await(other->stream()), absl::OkStatus());
    other->kernels().Copy(seen.data(), data.data(), 1000);
    ASSERT_EQ(other->Finish(), absl::OkStatus());
    EXPECT_EQ(seen.Download(), data.Download());
  }
}

TEST_F(CudaKernelsTest, TheFirstErrorIsKept) {
  if (FakeCuda() == nullptr) GTEST_SKIP() << "a real GPU does not fail so";
  const WithFakeCuda failing(&fake_cuda::Options::launches_left, 1);
  const DeviceElements data(*gpu_, Elements(4));
  for (int i = 0; i < 3; ++i) {
    kernels_.Reduce(data.data(), data.data(), data.data(), 1,
                    DataType::kFloat32, ReduceOp::kSum);
  }
  const absl::Status status = kernels_.Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED (719): so says "
            "the fake driver");
  EXPECT_EQ(gpu_->Finish(), status);
}

TEST_F(CudaKernelsTest, MemoryCanRunOut) {
  const absl::StatusOr<void*> memory = kernels_.Allocate(int64_t{1} << 62);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted)
      << memory.status();
}

}  // namespace
}  // namespace tfring
