// Recursive doubling and hierarchical allreduce, on 1 to 8 ranks as threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"

namespace tfring {
namespace {

// How an allreduce is done, and by whom.
struct AlgorithmCase {
  Medium medium;
  int size;
  std::vector<int> shape;  // none: recursive doubling

  absl::Status operator()(const RingContext& context,
                          const RingBuffers& buffers) const {
    if (shape.empty()) return RecursiveDoublingAllreduce(context, buffers);
    return HierarchicalAllreduce(RingGrid(context, shape), buffers);
  }
};

std::vector<AlgorithmCase> AlgorithmCases() {
  std::vector<AlgorithmCase> cases;
  for (int size = 1; size <= 8; ++size) {
    cases.push_back({Medium::kInProcess, size, {}});
  }
  cases.push_back({Medium::kSharedMemory, 2, {}});
  cases.push_back({Medium::kSharedMemory, 7, {}});
  cases.push_back({Medium::kTwoNodes, 5, {}});
  cases.push_back({Medium::kInProcess, 3, {1, 3}});
  cases.push_back({Medium::kInProcess, 6, {3, 2}});
  cases.push_back({Medium::kInProcess, 7, {7}});
  cases.push_back({Medium::kInProcess, 8, {2, 2, 2}});
  cases.push_back({Medium::kSharedMemory, 4, {2, 2}});
  cases.push_back({Medium::kNodesOfTwo, 4, {2, 2}});
  cases.push_back({Medium::kNodesOfTwo, 6, {2, 3}});
  cases.push_back({Medium::kTwoNodes, 6, {3, 2}});
  return cases;
}

class AllreduceAlgorithmsTest : public testing::TestWithParam<AlgorithmCase> {
 protected:
  static std::vector<SolvedAllreduce> Solve(
      const std::vector<AllreduceCase>& cases) {
    return tfring::Solve(cases, GetParam().size);
  }
  static void CheckAllreduces(const std::vector<SolvedAllreduce>& cases,
                              int64_t segment_bytes) {
    OnRanks(
        GetParam().size,
        [&](Transport& transport) {
          for (const SolvedAllreduce& c : cases) {
            CheckAllreduce(transport, c, {segment_bytes}, GetParam());
          }
        },
        GetParam().medium);
  }
};
INSTANTIATE_TEST_SUITE_P(AlgorithmCases, AllreduceAlgorithmsTest,
                         testing::ValuesIn(AlgorithmCases()),
                         [](const testing::TestParamInfo<AlgorithmCase>& info) {
                           std::string name =
                               "On" + std::to_string(info.param.size);
                           for (const int length : info.param.shape) {
                             name += "Axis" + std::to_string(length);
                           }
                           return name + "Medium" +
                                  std::to_string(
                                      static_cast<int>(info.param.medium));
                         });

TEST_P(AllreduceAlgorithmsTest, ReducesEveryTypeWithEveryOp) {
  CheckAllreduces(SolveEveryTypeAndOp(GetParam().size, {0, 1, 257}), 1000);
}

TEST_P(AllreduceAlgorithmsTest, ScalesOnce) {
  CheckAllreduces(Solve({{DataType::kFloat32, ReduceOp::kAverage, 7, 3},
                         {DataType::kFloat16, ReduceOp::kSum, 100, 0.25},
                         {DataType::kInt32, ReduceOp::kSum, 1000, 0.5}}),
                  64 << 10);
}

// These are more elements than a block of recursive doubling has, in segments
// of several sizes.
TEST_P(AllreduceAlgorithmsTest, ReducesManyElements) {
  CheckAllreduces(Solve({{DataType::kFloat32, ReduceOp::kAverage, 300'007}}),
                  64 << 10);
  CheckAllreduces(Solve({{DataType::kInt8, ReduceOp::kMax, 1001}}), 13);
}

TEST_P(AllreduceAlgorithmsTest, GivesEveryRankTheSameBits) {
  OnRanks(
      GetParam().size,
      [](Transport& transport) {
        for (const DataType dtype : kFloatTypes) {
          for (const ReduceOp op : kReduceOps) {
            HostRank(transport, 1000)
                .CheckIsTheSameOnAllRanks(
                    {dtype, op, 1001, /*postscale=*/1.0 / 3}, GetParam());
          }
        }
      },
      GetParam().medium);
}

// See Note [Parts of a grid].
TEST(HierarchicalTest, TheRanksOfANodeGoOnWhileNodesTalk) {
  constexpr int kSize = 4;
  // Counts on rank 0.
  const auto turns = [](int64_t bytes, int64_t segment_bytes) {
    int64_t result = 0;
    auto transports = MakeTransports(Medium::kNodesOfTwo, kSize);
    OnThreads(kSize, [&](int rank) {
      std::vector<bool> across;  // those messages to another node
      const int node = rank / 2;
      HookedTransport transport(
          std::move(transports[rank]),
          {[&](int peer, size_t) { across.push_back(peer / 2 != node); },
           {},
           {}});
      std::vector<float> data(bytes / sizeof(float));
      const HostRank host(transport, segment_bytes);
      const absl::Status status = HierarchicalAllreduce(
          RingGrid(host.context(), {2, 2}),
          {data.data(), data.data(), static_cast<int64_t>(data.size())});
      EXPECT_TRUE(status.ok()) << status;
      // Counts the changes from messages within the node to messages between
      // nodes.
      for (size_t i = 1; rank == 0 && i < across.size(); ++i) {
        result += across[i] && !across[i - 1];
      }
    });
    return result;
  };
  // One part, four parts, and one part per short segment.
  EXPECT_EQ(turns(kSize * (16 << 10), 512 << 10), 1);
  EXPECT_GE(turns(kSize * (512 << 10), 512 << 10), 4);
  EXPECT_GE(turns(kSize * (128 << 10), 4 << 10), 8);
}

// The rest of the buffer does not matter, as it does to a ring.
TEST(RecursiveDoublingTest, AnElementHasItsBitsWhereverItLies) {
  OnRanks(5, [](Transport& transport) {
    std::vector<float> data(2000);
    for (int i = 0; i < 1000; ++i) {
      data[i] = data[1999 - i] = RandomElement<float>(transport.rank(), i);
    }
    const HostRank host(transport, 1000);
    const absl::Status status = RecursiveDoublingAllreduce(
        host.context(), {data.data(), data.data(), 2000});
    ASSERT_TRUE(status.ok()) << status;
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(data[i], data[1999 - i]);
  });
}

}  // namespace
}  // namespace tfring
