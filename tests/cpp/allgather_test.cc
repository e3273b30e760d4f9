// How the tensors of an allgather travel.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/run_collective.h"

namespace tfring {
namespace {

constexpr int kSize = 4;

// Gathers tensors that have `rows[i]` rows of two floats on rank 0, and one
// more on each rank after it, and checks the results.  Returns how many
// messages all ranks have sent.
int Gather(const std::vector<int64_t>& rows, int64_t fusion_threshold_bytes) {
  std::atomic<int> sends = 0;
  auto transports = MakeInProcessTransports(kSize);
  OnThreads(kSize, [&](int rank) {
    const auto transport = CountSends(std::move(transports[rank]), sends);
    Options options;
    options.fusion_threshold_bytes = fusion_threshold_bytes;
    ExecutionContext context(options, *transport, CpuKernels(),
                             CostSource::kTypical);
    const auto value = [](int of_rank, size_t tensor, int64_t row) {
      return static_cast<float>(of_rank * 1000 + tensor * 100 + row % 100);
    };
    TensorEntry entry;
    entry.request.kind = CollectiveKind::kAllgather;
    Response response;
    response.sizes.resize(kSize);
    std::vector<std::vector<float>> inputs(rows.size()), expected(rows.size()),
        outputs(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int of_rank = 0; of_rank < kSize; ++of_rank) {
        response.sizes[of_rank].push_back(rows[i] + of_rank);
        for (int64_t row = 0; row < rows[i] + of_rank; ++row) {
          for (int column = 0; column < 2; ++column) {
            expected[i].push_back(value(of_rank, i, row));
            if (of_rank == rank) inputs[i].push_back(expected[i].back());
          }
        }
      }
      entry.request.tensors.push_back({"", {rows[i] + rank, 2}});
      entry.buffers.push_back({inputs[i].data(), nullptr});
    }
    entry.allocate_output = [&](int index, const std::vector<int64_t>& dims) {
      outputs[index].assign(dims[0] * dims[1], -1);
      return outputs[index].data();
    };
    const absl::Status status = RunCollective(context, entry, response);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(outputs, expected) << "rank " << rank;
  });
  return sends;
}

TEST(AllgatherTest, ShortTensorsAreOneMessage) {
  constexpr int64_t kThreshold = 1 << 20;
  const int of_one = Gather({5}, kThreshold);
  EXPECT_EQ(of_one, kSize * (kSize - 1));
  EXPECT_EQ(Gather({5, 0, 300, 7}, kThreshold), of_one);
  // These tensors need two fusion buffers.
  EXPECT_EQ(Gather({2000, 2000, 2000, 2000}, 140'000), 2 * of_one);
}

TEST(AllgatherTest, OthersTravelByThemselves) {
  constexpr int64_t kThreshold = 1 << 20;
  const int of_large = Gather({20'000}, kThreshold);
  EXPECT_EQ(Gather({5, 20'000, 7}, kThreshold), of_large + kSize * (kSize - 1));
  EXPECT_EQ(Gather({5, 7}, /*fusion_threshold_bytes=*/0),
            2 * kSize * (kSize - 1));
}

}  // namespace
}  // namespace tfring
