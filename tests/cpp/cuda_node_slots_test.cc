// GPUs of a node that talk through memory of the host which both have pinned.
// Ranks are threads with a fake GPU each.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/cuda_ring_checks.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/hooked_transport.h"

namespace tfring {
namespace {

// Bytes that processors of the host copy for an allreduce, on all ranks.
int64_t BytesCopiedByHosts(int size, Way way, const SolvedAllreduce& c) {
  std::atomic<int64_t> bytes{0};
  std::atomic<int> ready{0}, reset{0};
  auto hosts = MakeInProcessTransports(size);
  int64_t copied = 0;
  OnThreads(size, [&](int rank) {
    const auto count = [&](int, size_t sent) {
      bytes += static_cast<int64_t>(sent);
    };
    HookedTransport host(std::move(hosts[rank]), {count, count, {}});
    const auto device = OpenGpu();
    const auto transport =
        MakeCudaTransport(*device, host, OptionsFor(way)).value();
    // All links have been made.
    if (++ready == size) {
      bytes = 0;
      reset = 1;
    }
    while (reset == 0) std::this_thread::yield();
    GpuRank gpu(*device, *transport, kSegmentBytes);
    const auto sum = gpu.Allreduce(
        c, AllreduceInput(c.dtype, c.op, c.count, rank), /*in_place=*/true);
    EXPECT_TRUE(sum.ok() && *sum == c.expected) << sum.status();
    if (--ready == 0) {
      copied = bytes;
      reset = 0;
    }
    while (reset == 1) std::this_thread::yield();
  });
  return copied;
}

TEST(CudaNodeSlotsTest, NoThreadOfTheHostCopies) {
  for (const int size : {2, 3, 4}) {
    const int64_t count = 12'000;
    const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, count}, size);
    const int64_t moved = 2 * (size - 1) * count * int64_t{sizeof(float)};
    EXPECT_EQ(BytesCopiedByHosts(size, Way::kMessages, c), 2 * moved);
    EXPECT_EQ(BytesCopiedByHosts(size, Way::kStaged, c), 0);
  }
}

// Some ranks share a node, and others not; parts come late.
TEST(CudaNodeSlotsTest, OtherNodesAreSentMessages) {
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

// What `size` ranks print if one of them can pin no more when so many pieces of
// memory have been pinned.
std::string PrintedWithPins(int pins, int size) {
  const WithFakeCuda failing(&FakeOptions::pins_left, pins);
  const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 1003}, size);
  testing::internal::CaptureStderr();
  OnGpus(size, OptionsFor(Way::kStaged), Way::kStaged,
         [&](const CudaDevice& device, Transport& transport, Transport&) {
           GpuRank(device, transport, kSegmentBytes).CheckAllreduce(c);
         });
  return testing::internal::GetCapturedStderr();
}

// One warning for the job, and the job goes on.
TEST(CudaNodeSlotsTest, WhereOneCannotPinItAllSendMessages) {
  // Three ranks pin what each has, and then what two others have.
  for (const int pins : {0, 2, 3, 8}) {
    const std::string text = PrintedWithPins(pins, 3);
    const size_t found = text.find("cannot pin memory that ranks share");
    EXPECT_NE(found, std::string::npos) << pins << text;
    EXPECT_EQ(text.find("cannot pin", found + 1), std::string::npos) << text;
    EXPECT_NE(text.find("CUDA_ERROR_NOT_SUPPORTED"), std::string::npos);
    EXPECT_NE(text.find("TFRING_SHARED_MEMORY=0"), std::string::npos) << text;
  }
}

// When the first message goes it is too late for another way.
TEST(CudaNodeSlotsTest, WhoCannotPinSlotsFailsOnAllRanks) {
  for (const int slots : {0, 1, 2, 3}) {
    // Two for each of two ranks, before.
    const WithFakeCuda failing(&FakeOptions::pins_left, 4 + slots);
    const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 1003}, 2);
    std::atomic<int> ready{0}, failed{0};
    OnGpus(2, OptionsFor(Way::kStaged), Way::kStaged,
           [&](const CudaDevice& device, Transport& transport, Transport&) {
             GpuRank gpu(device, transport, kSegmentBytes);
             const auto sum = gpu.Allreduce(
                 c, AllreduceInput(c.dtype, c.op, c.count, gpu.rank()),
                 /*in_place=*/false, [&] {
                   ++ready;
                   while (ready < 2) std::this_thread::yield();
                 });
             EXPECT_NE(sum.status().message().find("TFRING_SHARED_MEMORY=0"),
                       absl::string_view::npos)
                 << sum.status();
             failed += sum.ok() ? 0 : 1;
           });
    EXPECT_EQ(failed, 2) << slots;
  }
}

}  // namespace
}  // namespace tfring
