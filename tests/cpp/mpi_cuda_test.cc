// The ring between GPUs, its ranks processes: so that memory and events really
// go from one to another.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <tuple>

#include "tests/cpp/cuda_fusion_checks.h"
#include "tests/cpp/cuda_ring_checks.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/mpi_world.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/transport/cuda/cuda.h"

namespace tfring {
namespace {

class MpiCudaTest
    : public testing::TestWithParam<std::tuple<bool, SharedMemory>> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, MpiCudaTest,
    testing::Combine(testing::Bool(),
                     testing::Values(SharedMemory::kNever,
                                     SharedMemory::kWithinNodes)));

TEST_P(MpiCudaTest, EveryCollective) {
  const auto [ipc, shared_memory] = GetParam();
  const auto host = MakeWorldTransport(shared_memory);
  const auto device = OpenGpu();
  Options options;
  options.cuda_ipc = ipc;
  options.device_segment_bytes = 1024;
  const auto transport = MakeCudaTransport(*device, *host, options).value();
  EXPECT_EQ(transport->CanPeek((host->rank() + 1) % host->size()),
            ipc && host->size() > 1);
  GpuRank(*device, *transport, 2000)
      .CheckAll(*host, SolveSomeTypesAndOps(host->size()));
}

// What copies carry soundly, and kernels do not.
TEST_P(MpiCudaTest, IpcThatKernelsReadWrongIsNotUsed) {
  const auto [ipc, shared_memory] = GetParam();
  const auto host = MakeWorldTransport(shared_memory);
  for (const int bytes : {1, 64 << 10, 1 << 20}) {
    const WithFakeCuda blind(&fake_cuda::Options::blind_kernels, bytes);
    const auto device = OpenGpu();
    Options options;
    options.cuda_ipc = ipc;
    const auto transport = MakeCudaTransport(*device, *host, options).value();
    for (int peer = 0; peer < host->size(); ++peer) {
      EXPECT_FALSE(transport->CanPeek(peer)) << bytes;
    }
    GpuRank(*device, *transport, 2000)
        .CheckAll(*host, SolveSomeTypesAndOps(host->size()));
  }
}

TEST_P(MpiCudaTest, TheFusionBufferMayGrow) {
  const auto [ipc, shared_memory] = GetParam();
  const WithFakeCuda delay(&fake_cuda::Options::delay_us, 300);
  const auto host = MakeWorldTransport(shared_memory);
  const auto device = OpenGpu();
  Options options;
  options.cuda_ipc = ipc;
  options.device_segment_bytes = 64 << 10;
  const auto transport = MakeCudaTransport(*device, *host, options).value();
  GpuFusion fusion(*device, *transport, options);
  const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 5000},
                          host->size());
  fusion.CheckAllreduce(c, 10);
  fusion.CheckReduceScatter({300'000, 700'000});
  EXPECT_EQ(fusion.status(), absl::OkStatus());
  EXPECT_EQ(FakeCudaCounts().numbers_gone_back, 0);
}

}  // namespace
}  // namespace tfring

int main(int argc, char** argv) { return tfring::RunMpiTests(argc, argv); }
