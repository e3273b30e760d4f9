// The fake GPU shows when a transport omits a wait: here the fake driver
// ignores some waits.  This test races on purpose, so it does not run under
// TSan.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/cuda_ring_checks.h"
#include "tests/cpp/fake_gpu.h"

namespace tfring {
namespace {

class CudaRacesTest : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, CudaRacesTest,
                         testing::Values(Way::kIpc, Way::kStaged));

TEST_P(CudaRacesTest, AWaitThatIsLeftOutIsSeen) {
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  const WithFakeCuda slow(&FakeOptions::delay_us, 500);
  const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 8191}, 2);
  for (const int nth : {0, 1, 2, 5}) {
    std::atomic<int> wrong{0};
    // A single run may be right by chance.
    const int most = nth > 0 ? 20 : 3;
    for (int i = 0; i < most && wrong == 0; ++i) {
      OnGpus(2, OptionsFor(GetParam()), GetParam(),
             [&](const CudaDevice& device, Transport& transport, Transport&) {
               GpuRank gpu(device, transport, kSegmentBytes);
               FakeCuda()->ignore_waits = nth;
               const auto result = gpu.Allreduce(
                   c, AllreduceInput(c.dtype, c.op, c.count, gpu.rank()),
                   /*in_place=*/false);
               ASSERT_TRUE(result.ok()) << result.status();
               wrong += *result == c.expected ? 0 : 1;
             });
      FakeCuda()->ignore_waits = 0;
    }
    EXPECT_EQ(wrong > 0, nth > 0) << "every " << nth << "th";
  }
}

}  // namespace
}  // namespace tfring
