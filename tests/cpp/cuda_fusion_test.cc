// The fusion buffer of a GPU, which neighbours read in place.  Ranks are
// threads with a fake GPU each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/cpp/cuda_fusion_checks.h"
#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/fake_gpu.h"

namespace tfring {
namespace {

constexpr int64_t kLargeThreshold = 1 << 20;

SolvedAllreduce Solve(int64_t count, int size) {
  return {{DataType::kFloat32, ReduceOp::kSum, count}, size};
}

// Calls body(fusion) on each rank.
template <typename Body>
void OnFusion(const std::vector<int>& nodes, const Options& options,
              const Body& body) {
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  const int64_t freed_before = FakeCudaCounts().freed_while_open;
  const int64_t back_before = FakeCudaCounts().numbers_gone_back;
  OnGpus(nodes, options, options.cuda_ipc ? Way::kIpc : Way::kStaged,
         [&](const CudaDevice& device, Transport& transport, Transport&) {
           GpuFusion fusion(device, transport, options);
           body(fusion);
           EXPECT_EQ(fusion.status(), absl::OkStatus());
         });
  EXPECT_EQ(FakeCudaCounts().freed_while_open, freed_before);
  EXPECT_EQ(FakeCudaCounts().numbers_gone_back, back_before);
}

// The parameters are the node of each rank, and the algorithm.
class CudaFusionTest : public testing::TestWithParam<
                           std::tuple<std::vector<int>, AllreduceAlgorithm>> {
 protected:
  int size() const { return static_cast<int>(nodes().size()); }

  template <typename Body>
  void OnFusion(int64_t fusion_threshold_bytes, const Body& body) const {
    const WithFakeCuda delay(&FakeOptions::delay_us, 300);
    Options options = OptionsFor(Way::kIpc);
    options.fusion_threshold_bytes = fusion_threshold_bytes;
    options.allreduce = std::get<1>(GetParam());
    tfring::OnFusion(nodes(), options, body);
  }

 private:
  const std::vector<int>& nodes() const { return std::get<0>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(
    Nodes, CudaFusionTest,
    testing::Combine(testing::Values(std::vector<int>{0, 0},
                                     std::vector<int>{0, 0, 0},
                                     std::vector<int>{0, 0, 0, 0},
                                     // In place within a node, through the host
                                     // between nodes.
                                     std::vector<int>{0, 0, 1},
                                     std::vector<int>{0, 0, 1, 1}),
                     testing::Values(AllreduceAlgorithm::kRing,
                                     AllreduceAlgorithm::kHierarchical,
                                     AllreduceAlgorithm::kRecursiveDoubling)));

// A block is packed into the memory of the block before the last, and a message
// into the memory of the previous message.  A neighbour may not have read that
// memory yet.
TEST_P(CudaFusionTest, ABlockWaitsUntilWhatWasThereHasBeenRead) {
  const SolvedAllreduce c = Solve(5000, size());
  for (const int64_t threshold_bytes : {int64_t{2000}, kLargeThreshold}) {
    OnFusion(threshold_bytes,
             [&](GpuFusion& fusion) { fusion.CheckAllreduce(c, 30); });
  }
}

TEST_P(CudaFusionTest, SoDoesWhatIsScaledForAReduceScatter) {
  OnFusion(kLargeThreshold, [&](GpuFusion& fusion) {
    fusion.CheckReduceScatter(std::vector<int64_t>(20, 200));
  });
}

// Chunks and blocks of any length, of tensors of any length, in their own
// memory and in the fusion buffer.
TEST_P(CudaFusionTest, WhatIsReducedIsAligned) {
  const int64_t before = FakeCudaCounts().slow_reductions;
  OnFusion(int64_t{2000}, [&](GpuFusion& fusion) {
    for (const int64_t count : {1, 5, 47, 1001, 4099}) {
      fusion.CheckAllreduce(Solve(count, size()), 1);
    }
    fusion.CheckAllreduce(Solve(5003, size()), 30);
  });
  EXPECT_EQ(FakeCudaCounts().slow_reductions, before);
}

Options LongParts() {
  Options options = OptionsFor(Way::kIpc);
  options.device_segment_bytes = 64 << 10;
  return options;
}

TEST(CudaFusionBufferTest, MayGrowWhileOthersReadIt) {
  const WithFakeCuda delay(&FakeOptions::delay_us, 300);
  const SolvedAllreduce c = Solve(5000, 3);
  OnFusion({0, 0, 0}, LongParts(), [&](GpuFusion& fusion) {
    fusion.CheckAllreduce(c, 10);
    fusion.CheckReduceScatter({200, 300'000, 700'000, 1'200'000});
  });
}

// However long a GPU takes, no rank sends memory that the GPU has yet to write,
// and no rank overwrites or frees memory that it has yet to read.  This holds
// between neighbours and through the host.
TEST(CudaFusionBufferTest, WaitsForAGpuThatStandsStill) {
  const SolvedAllreduce c = Solve(5000, 3);
  const WithFakeCuda restored(&FakeOptions::held, 0);
  std::atomic<bool> ends{false};
  std::thread by_turns([&] {
    while (!ends) {
      FakeCuda()->held = fake_cuda::kUrgentStream;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      // However slow the machine is, the ranks get on.
      FakeCuda()->held = 0;
      const int64_t before = FakeCudaCounts().tasks;
      EXPECT_TRUE(Await(
          [&] { return ends || FakeCudaCounts().tasks >= before + 100; }));
    }
  });
  OnFusion({0, 0, 1}, LongParts(), [&](GpuFusion& fusion) {
    fusion.CheckAllreduce(c, 10);
    fusion.CheckReduceScatter({200, 300'000});
  });
  ends = true;
  by_turns.join();
}

// Bytes that all ranks together copy for an allreduce of `count` elements.
int64_t CopiedBytes(int size, int64_t count, const Options& options,
                    int64_t tensors) {
  const SolvedAllreduce c = Solve(count, size);
  int64_t before = 0;
  std::atomic<int> ready{0};
  std::atomic<bool> begins{false};
  OnFusion(std::vector<int>(size), options, [&](GpuFusion& fusion) {
    // All links have been made and checked.
    if (++ready == size) {
      before = FakeCudaCounts().copied_bytes;
      begins = true;
    }
    while (!begins) std::this_thread::yield();
    fusion.CheckAllreduce(c, tensors);
  });
  return FakeCudaCounts().copied_bytes - before;
}

// A packed tensor is copied where the whole chunks land, and nowhere else; one
// that lies outside of the fusion buffer, for each send too.
TEST(CudaFusionBufferTest, IsNotCopiedToBeSent) {
  for (const int size : {2, 3, 4}) {
    const int64_t count = 12'000;
    const int64_t landing = (size - 1) * count * int64_t{sizeof(float)};
    EXPECT_EQ(CopiedBytes(size, count, LongParts(), 30), landing);
    EXPECT_EQ(CopiedBytes(size, count, LongParts(), 1), 3 * landing);
  }
}

TEST(CudaFusionBufferTest, WhereOneCannotExportItAllCopyWhatTheySend) {
  const SolvedAllreduce c = Solve(5000, 3);
  // Each rank's slots for two peers, and the buffers of two ranks.
  const WithFakeCuda failing(&FakeOptions::exports_left, 3 * 2 + 2);
  testing::internal::CaptureStderr();
  OnFusion({0, 0, 0}, LongParts(), [&](GpuFusion& fusion) {
    fusion.CheckAllreduce(c, 10);
    fusion.CheckReduceScatter({200, 700'000});
  });
  const std::string text = testing::internal::GetCapturedStderr();
  const std::string words = "packed to other memory, as rank";
  EXPECT_THAT(text,
              testing::AllOf(testing::HasSubstr(words),
                             testing::HasSubstr("CUDA_ERROR_NOT_SUPPORTED")));
  EXPECT_EQ(text.rfind(words), text.find(words)) << text;
}

}  // namespace
}  // namespace tfring
