// How often the driver is called for each segment of an allreduce between GPUs.
// Ranks are threads with a fake GPU each.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/cpp/cuda_fusion_checks.h"
#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/fake_gpu.h"

namespace tfring {
namespace {

constexpr int64_t kSegment = 16 << 10;
constexpr int64_t kSegments = 32;  // of each rank's chunk, in 8 blocks

// Calls for each segment that a rank receives: those that put work on a stream.
double CallsPerSegment(int size, Way way, int64_t tensors) {
  Options options = OptionsFor(way);
  options.device_segment_bytes = kSegment;
  options.allreduce = AllreduceAlgorithm::kRing;
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  const SolvedAllreduce c(
      {DataType::kFloat32, ReduceOp::kSum,
       size * kSegments * kSegment / int64_t{sizeof(float)}},
      size);
  std::atomic<int64_t>& calls = FakeCudaCounts().stream_calls;
  std::atomic<int> arrived{0};
  const auto meet = [&](int times) {
    ++arrived;
    while (arrived < times * size) std::this_thread::yield();
  };
  std::atomic<int64_t> before{0}, after{0};
  OnGpus(size, options, way,
         [&](const CudaDevice& device, Transport& transport, Transport&) {
           GpuFusion fusion(device, transport, options);
           // The memory that it needs is there then.
           fusion.CheckAllreduce(c, tensors);
           meet(1);
           before = calls.load();
           meet(2);
           fusion.CheckAllreduce(c, tensors);
           meet(3);
           after = calls.load();
           meet(4);
         });
  const int64_t received = 2 * (size - 1) * kSegments * size;
  return static_cast<double>(after - before) / static_cast<double>(received);
}

class CudaCallsTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, CudaCallsTest, testing::Values(2, 3, 4));

// For a segment that is reduced: a wait for it, a kernel, and one call that
// says that it has been read and that the sum is there; for one that lands, the
// same with a copy. Once a primitive, a wait until all that was sent has been
// read. The one call is two where four parts are in flight to the next rank
// already.
TEST_P(CudaCallsTest, PackedTensors) {
  const double calls = CallsPerSegment(GetParam(), Way::kIpc, 64);
  GTEST_LOG_(INFO) << calls << " calls";
  EXPECT_LT(calls, 4.5);
}

// What is sent is copied to a slot first: besides, a wait of the stream that
// copies, the copy, and the flag that says so.
TEST_P(CudaCallsTest, LargeTensors) {
  const double calls = CallsPerSegment(GetParam(), Way::kIpc, 1);
  GTEST_LOG_(INFO) << calls << " calls";
  EXPECT_LT(calls, 7.5);
}

TEST_P(CudaCallsTest, ThroughTheHost) {
  const double calls = CallsPerSegment(GetParam(), Way::kStaged, 1);
  GTEST_LOG_(INFO) << calls << " calls";
  EXPECT_LT(calls, 10.0);
}

}  // namespace
}  // namespace tfring
