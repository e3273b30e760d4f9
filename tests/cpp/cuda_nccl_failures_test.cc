// The choice between NCCL and the ring.  A failure in NCCL is an error on every
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_engines.h"
#include "tests/cpp/nccl_ranks.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/nccl/library.h"

namespace tfring {
namespace {

using GpuBackend = Options::GpuBackend;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kSize = 3;

struct Choice {
  bool is_nccl = false;
  absl::Status status;
};

// Returns the backend of each rank; rank r has GPU r % `gpus`.
std::vector<Choice> Choose(const Options& options, int gpus, int size = kSize) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, gpus);
  auto hosts = MakeInProcessTransports(size);
  std::vector<Choice> choices(size);
  OnThreads(size, [&](int rank) {
    const auto device = OpenGpu(rank % gpus);
    const auto made = MakeNcclCollectives(*device, *hosts[rank], options);
    choices[rank].status =
        absl::Status(made.status().code(), made.status().message());
    choices[rank].is_nccl = made.ok() && *made != nullptr;
  });
  return choices;
}

std::vector<Choice> Choose(GpuBackend backend, int gpus, int size = kSize) {
  return Choose(NcclOptions(backend), gpus, size);
}

void ExpectAll(const std::vector<Choice>& choices, bool is_nccl) {
  for (const Choice& choice : choices) {
    EXPECT_TRUE(choice.status.ok()) << choice.status;
    EXPECT_EQ(choice.is_nccl, is_nccl);
  }
}

void ExpectAllRefused(const std::vector<Choice>& choices,
                      const std::string& reason) {
  for (const Choice& choice : choices) {
    EXPECT_EQ(choice.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(choice.status, AllOf(HasMessage("TFRING_GPU_BACKEND=nccl"),
                                     HasMessage(reason)));
  }
}

TEST(CudaNcclChoiceTest, TheLibraryIsFound) {
  const auto nccl = NcclLibrary::Get();
  ASSERT_TRUE(nccl.ok()) << nccl.status();
  EXPECT_EQ((*nccl)->version(), 22105);
  EXPECT_THAT((*nccl)->path(), HasSubstr("fake/nccl/libnccl.so.2"));
}

TEST(CudaNcclChoiceTest, AGpuForEachRank) {
  ExpectAll(Choose(GpuBackend::kRing, kSize), false);
  ExpectAll(Choose(GpuBackend::kNccl, kSize), true);
  ExpectAll(Choose(GpuBackend::kAuto, kSize), true);
  // Alone, there is nothing to send.
  ExpectAll(Choose(GpuBackend::kAuto, 1, 1), false);
  ExpectAll(Choose(GpuBackend::kNccl, 1, 1), true);
}

TEST(CudaNcclChoiceTest, WithoutASettingItServes) {
  ExpectAll(Choose(Options(), kSize), true);
  ExpectAll(Choose(Options(), kSize - 1), false);
  // NCCL does not promise the same bits in each run.
  Options options;
  options.deterministic = true;
  ExpectAll(Choose(options, kSize), false);
  options.gpu_backend = GpuBackend::kNccl;
  ExpectAll(Choose(options, kSize), true);
}

TEST(CudaNcclChoiceTest, AGpuForTwo) {
  ExpectAll(Choose(GpuBackend::kAuto, kSize - 1), false);
  ExpectAllRefused(Choose(GpuBackend::kNccl, kSize - 1),
                   "ranks 0 and 2 share a GPU");
}

TEST(CudaNcclChoiceTest, NoIdOnOneRank) {
  const WithFakeNccl no_id(&fake_nccl::Options::no_id, 1);
  ExpectAll(Choose(GpuBackend::kAuto, kSize), false);
  ExpectAllRefused(
      Choose(GpuBackend::kNccl, kSize),
      "rank 0: ncclGetUniqueId failed: unhandled system error (2): "
      "no network interface");
}

// The remaining ranks stop waiting for it.
TEST(CudaNcclChoiceTest, OneRankCannotConnect) {
  for (int rank = 0; rank < kSize; ++rank) {
    const WithFakeNccl fails(&fake_nccl::Options::fails_to_init, rank);
    ExpectAll(Choose(GpuBackend::kAuto, kSize), false);
    ExpectAllRefused(Choose(GpuBackend::kNccl, kSize),
                     "rank " + std::to_string(rank) +
                         ": NCCL failed: unhandled system error (2): "
                         "so says the fake NCCL");
  }
}

// Every rank reports the failure, not only the failing rank.
// cuda_nccl_launched_test.cc tests later failures.
TEST(CudaNcclEngineTest, ALaunchFails) {
  const WithFakeNccl full(&fake_nccl::Options::launches_left, kSize - 1);
  for (const NcclOutcome& outcome : AllreduceByNccl(kSize)) {
    EXPECT_THAT(outcome.status,
                HasMessage("ncclAllReduce failed: unhandled cuda error (1): "
                           "the fake GPU is full"));
  }
}

}  // namespace
}  // namespace tfring
