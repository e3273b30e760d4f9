// How much memory collectives take beyond their tensors: the fusion buffer and
// 16 MiB for each rank, whatever the size.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tests/cpp/run_collective.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

constexpr int kSize = 4;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kTensorBytes = 32 * kMiB;
constexpr int64_t kThresholdBytes = kMiB;
constexpr int64_t kMostBytes = kSize * (kThresholdBytes + 16 * kMiB);

// The most that this process has ever used.
int64_t PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

class MemoryTest : public testing::Test {
 protected:
  // All the memory of the tensors, in use before anything is measured.
  static void SetUpTestSuite() {
    for (int rank = 0; rank < kSize; ++rank) {
      inputs().emplace_back(kTensorBytes, std::byte{0});
      outputs().emplace_back(kTensorBytes, std::byte{1});
    }
  }
  static void TearDownTestSuite() {
    inputs().clear();
    outputs().clear();
  }

  // The buffers of each rank.
  static std::vector<std::vector<std::byte>>& inputs() {
    static auto& memory = *new std::vector<std::vector<std::byte>>();
    return memory;
  }
  static std::vector<std::vector<std::byte>>& outputs() {
    static auto& memory = *new std::vector<std::vector<std::byte>>();
    return memory;
  }

  // Calls run(context, entry) on every rank, with `tensors` equal tensors, and
  // returns by how much the peak has grown.
  template <typename Run>
  static int64_t AddedBytes(int64_t tensors, const Run& run) {
    const int64_t before = PeakBytes();
    const auto transports = MakeTransports(Medium::kInProcess, kSize);
    OnThreads(kSize, [&](int rank) {
      Options options;
      options.fusion_threshold_bytes = kThresholdBytes;
      ExecutionContext context(options, *transports[rank], CpuKernels(),
                               CostSource::kTypical);
      TensorEntry entry;
      const int64_t bytes = kTensorBytes / tensors;
      for (int64_t i = 0; i < tensors; ++i) {
        entry.request.tensors.push_back({"", {bytes / 4}});
        entry.buffers.push_back({inputs()[rank].data() + i * bytes,
                                 outputs()[rank].data() + i * bytes});
      }
      entry.allocate_output = [rank](int, const std::vector<int64_t>&) {
        return outputs()[rank].data();
      };
      entry.on_received_splits = [](const std::vector<int64_t>&) {};
      const absl::Status status = run(context, entry);
      EXPECT_TRUE(status.ok()) << status;
    });
    return PeakBytes() - before;
  }
};

TEST_F(MemoryTest, Allreduce) {
  for (const int64_t tensors : {1, 4096}) {
    for (const double prescale : {1.0, 0.5}) {
      const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
        entry.request.prescale_factor = prescale;
        return RunCollective(context, entry);
      };
      EXPECT_LE(AddedBytes(tensors, run), kMostBytes) << tensors;
    }
  }
}

TEST_F(MemoryTest, CastAllreduce) {
  for (const int64_t tensors : {1, 4096}) {
    const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
      entry.request.wire_dtype = DataType::kFloat16;
      return RunCollective(context, entry);
    };
    EXPECT_LE(AddedBytes(tensors, run), kMostBytes) << tensors;
  }
}

TEST_F(MemoryTest, ReduceScatter) {
  for (const double prescale : {1.0, 0.5}) {
    const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
      entry.request.prescale_factor = prescale;
      entry.request.kind = CollectiveKind::kReduceScatter;
      return RunCollective(context, entry);
    };
    EXPECT_LE(AddedBytes(1, run), kMostBytes);
  }
}

TEST_F(MemoryTest, Allgather) {
  const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
    const int64_t rows = kTensorBytes / 4 / kSize;
    entry.request.tensors[0].dims = {rows};
    entry.request.kind = CollectiveKind::kAllgather;
    Response response;
    response.sizes.assign(kSize, {rows});
    return RunCollective(context, entry, response);
  };
  EXPECT_LE(AddedBytes(1, run), kMostBytes);
}

TEST_F(MemoryTest, Alltoall) {
  const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
    entry.request.kind = CollectiveKind::kAlltoall;
    Response response;
    response.sizes.assign(
        kSize, std::vector<int64_t>(kSize, kTensorBytes / 4 / kSize));
    return RunCollective(context, entry, response);
  };
  EXPECT_LE(AddedBytes(1, run), kMostBytes);
}

TEST_F(MemoryTest, Broadcast) {
  const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
    entry.request.kind = CollectiveKind::kBroadcast;
    entry.request.root_rank = 1;
    return RunCollective(context, entry);
  };
  EXPECT_LE(AddedBytes(1, run), kMostBytes);
}

}  // namespace
}  // namespace tfring
