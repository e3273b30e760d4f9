// GPUs, and no NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/nccl/collectives.h"
#include "tfring_ops/nccl/library.h"

namespace tfring {
namespace {

TEST(CudaWithoutNcclTest, TheRingWhereItMay) {
  ASSERT_FALSE(NcclLibrary::Get().ok());
  auto hosts = MakeInProcessTransports(2);
  OnThreads(2, [&](int rank) {
    const auto device = OpenGpu();
    Options options;
    options.gpu_backend = Options::GpuBackend::kAuto;
    const auto by_ring = MakeNcclCollectives(*device, *hosts[rank], options);
    ASSERT_TRUE(by_ring.ok()) << by_ring.status();
    EXPECT_EQ(*by_ring, nullptr);

    options.gpu_backend = Options::GpuBackend::kNccl;
    const auto refused = MakeNcclCollectives(*device, *hosts[rank], options);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(refused.status(), HasMessage("rank 0: no NCCL: libnccl.so.2"));
  });
}

}  // namespace
}  // namespace tfring
