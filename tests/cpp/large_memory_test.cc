// How much memory collectives take beyond their tensors: the fusion buffer and
// 16 MiB for each rank, whatever the size.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <optional>
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

struct MemoryCase {
  CollectiveKind kind;
  int64_t tensors = 1;
  double prescale = 1.0;
  std::optional<DataType> wire_dtype = {};
};

TEST_F(MemoryTest, IsBounded) {
  using Kind = CollectiveKind;
  for (const MemoryCase& c : {MemoryCase{Kind::kAllreduce},
                              {Kind::kAllreduce, 4096},
                              {Kind::kAllreduce, 1, 0.5},
                              {Kind::kAllreduce, 4096, 0.5},
                              {Kind::kAllreduce, 1, 1.0, DataType::kFloat16},
                              {Kind::kAllreduce, 4096, 1.0, DataType::kFloat16},
                              {Kind::kReduceScatter},
                              {Kind::kReduceScatter, 1, 0.5},
                              {Kind::kAllgather},
                              {Kind::kAlltoall},
                              {Kind::kBroadcast}}) {
    const auto run = [&](ExecutionContext& context, TensorEntry& entry) {
      entry.request.kind = c.kind;
      entry.request.prescale_factor = c.prescale;
      entry.request.wire_dtype = c.wire_dtype;
      entry.request.root_rank = 1;
      Response response;
      const int64_t rows = kTensorBytes / 4 / kSize;
      if (c.kind == Kind::kAllgather) {
        entry.request.tensors[0].dims = {rows};
        response.sizes.assign(kSize, {rows});
      } else if (c.kind == Kind::kAlltoall) {
        response.sizes.assign(kSize, std::vector<int64_t>(kSize, rows));
      }
      return RunCollective(context, entry, response);
    };
    EXPECT_LE(AddedBytes(c.tensors, run), kMostBytes)
        << Name(c.kind) << ", " << c.tensors << ", " << c.prescale;
  }
}

}  // namespace
}  // namespace tfring
