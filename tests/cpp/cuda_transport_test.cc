// The ring between GPUs, its ranks threads with a fake GPU each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/cuda_ring_checks.h"
#include "tests/cpp/fake_gpu.h"

namespace tfring {
namespace {

using testing::HasSubstr;

class CudaTransportTest
    : public testing::TestWithParam<std::tuple<int, Way, int>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  Way way() const { return std::get<1>(GetParam()); }

  template <typename Body>
  void OnGpus(const Body& body) const {
    tfring::OnGpus(size(), OptionsFor(way()), way(), body);
  }

 private:
  const WithFakeCuda delay_{&FakeOptions::delay_us, std::get<2>(GetParam())};
  const WithFakeCuda open_own_{&FakeOptions::open_own, 1};
};
INSTANTIATE_TEST_SUITE_P(
    Ways, CudaTransportTest,
    testing::Combine(testing::Values(1, 2, 3, 4),
                     testing::Values(Way::kIpc, Way::kStaged, Way::kCudaAware),
                     testing::Values(50)));

TEST_P(CudaTransportTest, EveryCollective) {
  const auto cases = SolveSomeTypesAndOps(size());
  OnGpus([&](const CudaDevice& device, Transport& transport, Transport& host) {
    EXPECT_EQ(transport.CanPeek((host.rank() + 1) % size()),
              way() == Way::kIpc && size() > 1);
    GpuRank(device, transport, kSegmentBytes).CheckAll(host, cases);
  });
  EXPECT_EQ(FakeCudaCounts().ordinary_streams, 0);
}

TEST_P(CudaTransportTest, MessagesArriveInOrderAndMayBeEmpty) {
  OnGpus([&](const CudaDevice& device, Transport& transport, Transport&) {
    if (size() == 1) return;
    const int next = (transport.rank() + 1) % size();
    const int previous = (transport.rank() + size() - 1) % size();
    const std::vector<int64_t> lengths = {3, 0, 5000, 512, 1};
    std::vector<std::unique_ptr<DeviceElements>> sent, received;
    std::vector<OperationId> requests = {kNoOperation};
    for (const int64_t bytes : lengths) {
      received.push_back(
          std::make_unique<DeviceElements>(device, Elements(bytes)));
      requests.push_back(
          transport.StartRecv(previous, Bytes(received.back()->data(), bytes)));
    }
    for (const int64_t bytes : lengths) {
      sent.push_back(std::make_unique<DeviceElements>(
          device, BytesOf(transport.rank(), bytes)));
      requests.push_back(
          transport.StartSend(next, ConstBytes(sent.back()->data(), bytes)));
    }
    for (const OperationId request : requests) {
      EXPECT_EQ(transport.Wait(request), absl::OkStatus());
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_EQ(received[i]->Download(), BytesOf(previous, lengths[i]));
    }
  });
}

std::string WarningOf(const WithFakeCuda&) {
  const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 1003}, 3);
  testing::internal::CaptureStderr();
  OnGpus(3, OptionsFor(Way::kIpc), Way::kIpc,
         [&](const CudaDevice& device, Transport& transport, Transport&) {
           EXPECT_FALSE(transport.CanPeek((transport.rank() + 1) % 3));
           GpuRank(device, transport, kSegmentBytes).CheckAllreduce(c);
         });
  return testing::internal::GetCapturedStderr();
}

// The job prints one warning and continues.
TEST(CudaFallbackTest, WhereMemoryCannotBeOpenedAllGoThroughTheHost) {
  // CUDA does not let a process open its own memory, and these ranks are
  // threads of one process.
  const std::string text = WarningOf(WithFakeCuda(&FakeOptions::open_own, 0));
  const std::string words = "cannot share its GPU's";
  EXPECT_THAT(text, testing::AllOf(HasSubstr(words),
                                   HasSubstr("CUDA_ERROR_INVALID_CONTEXT")));
  EXPECT_EQ(text.rfind(words), text.find(words)) << text;
}

TEST(CudaFallbackTest, WhereThereIsNoIpcAllGoThroughTheHost) {
  EXPECT_THAT(WarningOf(WithFakeCuda(&FakeOptions::no_ipc, 1)),
              HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
}

// Streams wait for each other by counters in pinned memory.
TEST(CudaFallbackTest, WhereMemoryCannotBePinnedAllGoThroughTheHost) {
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  // Each of three ranks pins its own counters first, and then the counters of
  // two peers.
  for (const int pins : {0, 2, 3, 8}) {
    EXPECT_THAT(WarningOf(WithFakeCuda(&FakeOptions::pins_left, pins)),
                HasSubstr("CUDA_ERROR_NOT_SUPPORTED"))
        << pins;
  }
}

// Only some ranks share a node, and the GPUs are late.
TEST(CudaNodesTest, StagedWithinAndBetweenThem) {
  const WithFakeCuda delay(&FakeOptions::delay_us, 300);
  for (const std::vector<int>& nodes :
       {std::vector<int>{0, 0, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}}) {
    const auto size = static_cast<int>(nodes.size());
    const auto cases = SolveSomeTypesAndOps(size);
    OnGpus(
        nodes, OptionsFor(Way::kStaged), Way::kStaged,
        [&](const CudaDevice& device, Transport& transport, Transport& host) {
          GpuRank(device, transport, kSegmentBytes).CheckAll(host, cases);
        });
  }
}

}  // namespace
}  // namespace tfring
