// The ring between GPUs, its ranks processes: so that memory and events really
// go from one to another.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <tuple>

#include "tests/cpp/cuda_fusion_checks.h"
#include "tests/cpp/cuda_ring_checks.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/mpi_world.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/transport/cuda/cuda.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

class MpiCudaTest
    : public testing::TestWithParam<std::tuple<bool, SharedMemory>> {
 protected:
  static bool ipc() { return std::get<0>(GetParam()); }
  static Options MakeOptions(int64_t segment_bytes) {
    Options options;
    options.cuda_ipc = ipc();
    options.shared_memory =
        std::get<1>(GetParam()) == SharedMemory::kWithinNodes;
    options.device_segment_bytes = segment_bytes;
    return options;
  }

  // A test has closed every handle of other ranks' memory that it opened.
  void TearDown() override { EXPECT_EQ(FakeCudaCounts().open_handles, 0); }

  const std::unique_ptr<Transport> host_ =
      MakeWorldTransport(std::get<1>(GetParam()));
};
INSTANTIATE_TEST_SUITE_P(
    Ways, MpiCudaTest,
    testing::Combine(testing::Bool(),
                     testing::Values(SharedMemory::kNever,
                                     SharedMemory::kWithinNodes)));

TEST_P(MpiCudaTest, EveryCollective) {
  const auto device = OpenGpu();
  const auto transport =
      MakeCudaTransport(*device, *host_, MakeOptions(1024)).value();
  EXPECT_EQ(transport->CanPeek((host_->rank() + 1) % host_->size()),
            ipc() && host_->size() > 1);
  GpuRank(*device, *transport, 2000)
      .CheckAll(*host_, SolveSomeTypesAndOps(host_->size()));
}

// Copies read the memory correctly here; kernels do not.
TEST_P(MpiCudaTest, IpcThatKernelsReadWrongIsNotUsed) {
  for (const int bytes : {1, 64 << 10, 1 << 20}) {
    const WithFakeCuda blind(&fake_cuda::Options::blind_kernels, bytes);
    const auto device = OpenGpu();
    const auto transport =
        MakeCudaTransport(*device, *host_, MakeOptions(4 << 20)).value();
    for (int peer = 0; peer < host_->size(); ++peer) {
      EXPECT_FALSE(transport->CanPeek(peer)) << bytes;
    }
    GpuRank(*device, *transport, 2000)
        .CheckAll(*host_, SolveSomeTypesAndOps(host_->size()));
  }
}

// CUDA does the same.  Only the last close ends the mapping.
TEST(MpiCudaDriverTest, AHandleThatIsOpenedTwiceIsMappedOnce) {
  const auto host = MakeWorldTransport(SharedMemory::kNever);
  const CudaDriver& driver = **CudaDriver::Get();
  const auto device = OpenGpu();
  const CudaScope scope(driver, device->context());
  CUdeviceptr own = 0;
  CUipcMemHandle handle{};
  ASSERT_EQ(driver.cuMemAlloc(&own, sizeof(int)), absl::OkStatus());
  ASSERT_EQ(driver.cuIpcGetMemHandle(&handle, own), absl::OkStatus());
  const int rank = host->rank(), next = (rank + 1) % host->size();
  ASSERT_EQ(device->Upload(DeviceMemory(own), &rank, sizeof(rank)),
            absl::OkStatus());
  const auto handles = ExchangeOne(*host, handle).value();
  const auto read = [&](CUdeviceptr memory) {
    int number = -1;
    return device->Download(&number, DeviceMemory(memory), sizeof(number)).ok()
               ? number
               : -1;
  };
  if (next != rank) {
    CUdeviceptr once = 0, twice = 0;
    for (CUdeviceptr* const opened : {&once, &twice}) {
      ASSERT_EQ(driver.cuIpcOpenMemHandle(opened, handles[next],
                                          kCudaIpcLazyPeerAccess),
                absl::OkStatus());
    }
    EXPECT_EQ(once, twice);
    EXPECT_EQ(driver.cuIpcCloseMemHandle(once), absl::OkStatus());
    EXPECT_EQ(read(twice), next);
    EXPECT_EQ(driver.cuIpcCloseMemHandle(twice), absl::OkStatus());
    EXPECT_EQ(read(twice), -1);
    EXPECT_FALSE(driver.cuIpcCloseMemHandle(twice).ok());
  }
  ASSERT_TRUE(ExchangeOne(*host, 'x').ok());
  EXPECT_EQ(driver.cuMemFree(own), absl::OkStatus());
}

// A CUDA-aware MPI needs the context, because any thread that calls MPI may
// progress the GPU's messages.
TEST(MpiCudaAwareTest, EveryThreadThatCallsMpiHasTheContext) {
  auto host = MakeWorldTransport(SharedMemory::kNever);
  const auto other_channel = MakeWorldTransport(SharedMemory::kNever);
  if (host->size() == 1) return;
  const CudaDriver& driver = **CudaDriver::Get();
  const auto device = OpenGpu();
  const auto context_after_calls = [&] {
    CUcontext current = nullptr;
    std::thread([&] {
      {
        const CudaScope for_one_call(driver, device->context());
        EXPECT_EQ(other_channel->Progress(), absl::OkStatus());
      }
      EXPECT_EQ(other_channel->Progress(), absl::OkStatus());
      EXPECT_EQ(driver.cuCtxGetCurrent(&current), absl::OkStatus());
    }).join();
    return current;
  };
  EXPECT_EQ(context_after_calls(), nullptr);
  Options options;
  options.cuda_ipc = false;
  CudaAwareTransport aware(std::move(host));
  const auto transport = MakeCudaTransport(*device, aware, options).value();
  EXPECT_EQ(context_after_calls(), device->context());
}

TEST_P(MpiCudaTest, TheFusionBufferMayGrow) {
  const WithFakeCuda delay(&fake_cuda::Options::delay_us, 300);
  const auto device = OpenGpu();
  const Options options = MakeOptions(64 << 10);
  const auto transport = MakeCudaTransport(*device, *host_, options).value();
  GpuFusion fusion(*device, *transport, options);
  const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 5000},
                          host_->size());
  fusion.CheckAllreduce(c, 10);
  fusion.CheckReduceScatter({300'000, 700'000});
  EXPECT_EQ(fusion.status(), absl::OkStatus());
  EXPECT_EQ(FakeCudaCounts().numbers_gone_back, 0);
}

}  // namespace
}  // namespace tfring
