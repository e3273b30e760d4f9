// The collectives of the ring on 1 to 8 ranks, as threads.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/algorithms/ring/chunks.h"

namespace tfring {
namespace {

// Every test at every number of ranks, over every medium.
class RingTest : public testing::TestWithParam<std::tuple<int, Medium>> {
 protected:
  int size() const { return std::get<int>(GetParam()); }

  template <typename Body>
  void OnRanks(const Body& body) const {
    tfring::OnRanks(size(), body, std::get<Medium>(GetParam()));
  }

  // All pairs of a type and an operation would take long with many elements.
  static std::vector<AllreduceCase> EachTypeAndEachOp(
      const std::vector<int64_t>& counts) {
    std::vector<AllreduceCase> cases;
    for (const int64_t count : counts) {
      for (const DataType dtype : kDataTypes) {
        cases.push_back({dtype, ReduceOp::kSum, count});
      }
      for (const ReduceOp op : kReduceOps) {
        cases.push_back({DataType::kFloat32, op, count});
      }
    }
    return cases;
  }

  std::vector<SolvedAllreduce> Solve(
      const std::vector<AllreduceCase>& cases) const {
    return tfring::Solve(cases, size());
  }
  void CheckAllreduces(const std::vector<SolvedAllreduce>& cases,
                       const std::vector<int64_t>& segment_sizes) const {
    OnRanks([&](Transport& transport) {
      for (const SolvedAllreduce& c : cases) {
        CheckAllreduce(transport, c, segment_sizes);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(InProcess, RingTest,
                         testing::Combine(testing::Values(1, 2, 3, 8),
                                          testing::Values(Medium::kInProcess)));
INSTANTIATE_TEST_SUITE_P(
    SharedMemory, RingTest,
    testing::Combine(testing::Values(2, 5),
                     testing::Values(Medium::kSharedMemory)));
INSTANTIATE_TEST_SUITE_P(Tcp, RingTest,
                         testing::Values(std::tuple(2, Medium::kTcp),
                                         std::tuple(5, Medium::kTcp)));
INSTANTIATE_TEST_SUITE_P(Nodes, RingTest,
                         testing::Values(std::tuple(3, Medium::kNodesOfTwo),
                                         std::tuple(3, Medium::kTwoNodes),
                                         std::tuple(6, Medium::kTwoNodes)));

TEST(RingOrderTest, VisitsNodeAfterNode) {
  struct Case {
    std::vector<int> nodes, ranks;
  };
  for (const Case& c : {Case{{7}, {0}}, Case{{0, 0, 0}, {0, 1, 2}},
                        Case{{0, 1, 0, 1, 0}, {0, 2, 4, 1, 3}},
                        Case{{5, 2, 9, 2, 5, 9}, {0, 4, 1, 3, 2, 5}}}) {
    const auto transports = MakeInProcessTransports(c.nodes);
    const int size = static_cast<int>(c.nodes.size());
    for (int rank = 0; rank < size; ++rank) {
      const RingOrder order = RingOrder::ByNode(*transports[rank]);
      EXPECT_EQ(order.ranks, c.ranks);
      EXPECT_EQ(order.ranks[order.place], rank);
      EXPECT_EQ(order.Before(0), rank);
      for (int steps = 0; steps < size; ++steps) {
        EXPECT_EQ(order.StepsFrom(order.Before(steps)), steps);
      }
    }
  }
}

TEST(ChunkOfTest, CoversTheBufferInOrderWithEqualParts) {
  for (int parts = 1; parts <= 8; ++parts) {
    for (const int64_t count : {0, 1, 7, 8, 9, 1000, 1'000'003}) {
      int64_t end = 0;
      for (int index = 0; index < parts; ++index) {
        const Range chunk = ChunkOf(count, parts, index);
        EXPECT_EQ(chunk.offset, end);
        EXPECT_GE(chunk.count, count / parts);
        EXPECT_LE(chunk.count, (count + parts - 1) / parts);
        end += chunk.count;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(AlignedChunkOfTest, CoversTheBufferWithBordersOfWholeLines) {
  for (const DataType dtype :
       {DataType::kInt8, DataType::kFloat16, DataType::kFloat64}) {
    const int64_t between = kBorderBytes / SizeInBytes(dtype);
    for (int parts = 1; parts <= 8; ++parts) {
      for (const int64_t count :
           {int64_t{0}, int64_t{1}, int64_t{7}, between - 1, between,
            between + 1, 3 * between + 5, int64_t{1000}, int64_t{1'000'003}}) {
        int64_t end = 0;
        for (int index = 0; index < parts; ++index) {
          const Range chunk = AlignedChunkOf(count, parts, index, dtype);
          EXPECT_EQ(chunk.offset, end);
          EXPECT_TRUE(chunk.count == 0 || chunk.offset % between == 0);
          EXPECT_LE(chunk.count, count / parts + between);
          end += chunk.count;
        }
        EXPECT_EQ(end, count);
      }
    }
  }
}

// Segments of 8 bytes hold one to eight elements.
TEST_P(RingTest, AllreduceOfFewElements) {
  CheckAllreduces(SolveEveryTypeAndOp(size(), {0, 1, 2, 3, 7}), {8});
}

TEST_P(RingTest, AllreduceOfManyElements) {
  CheckAllreduces(Solve(EachTypeAndEachOp({1000, 4097})), {1000, 64 << 10});
}

TEST_P(RingTest, AllreduceInSegmentsOfAnySize) {
  // A segment of less than an element still carries one.
  CheckAllreduces(Solve({{DataType::kFloat64, ReduceOp::kSum, 1000},
                         {DataType::kInt8, ReduceOp::kMax, 1000}}),
                  {1, 13, 24, 512 << 10});
  CheckAllreduces(Solve({{DataType::kFloat32, ReduceOp::kSum, 1},
                         {DataType::kFloat32, ReduceOp::kSum, 7},
                         {DataType::kFloat16, ReduceOp::kProduct, 7}}),
                  {1, 512 << 10});
}

TEST_P(RingTest, AllreduceScalesOnce) {
  std::vector<AllreduceCase> cases = {
      {DataType::kInt32, ReduceOp::kSum, 1000, /*postscale=*/0.5}};
  for (const DataType dtype : kFloatTypes) {
    for (const ReduceOp op : kReduceOps) {
      cases.push_back({dtype, op, 1000, /*postscale=*/0.25});
      cases.push_back({dtype, op, 7, /*postscale=*/3});
    }
  }
  CheckAllreduces(Solve(cases), {1000});
}

TEST_P(RingTest, AllreduceOfPieces) {
  const std::vector<std::vector<int64_t>> cases = {
      {0, 1, 0, 0, 2, 0}, {4097}, {3000, 1, 0, 2, 4000, 1}, {0}, {1, 5000}};
  for (const std::vector<int64_t>& lengths : cases) {
    const int64_t count =
        std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    for (const DataType dtype : {DataType::kFloat16, DataType::kInt64}) {
      const SolvedAllreduce solved({dtype, ReduceOp::kAverage, count, 0.5},
                                   size());
      OnRanks([&](Transport& transport) {
        for (const int64_t segment_bytes : {64, 1000}) {
          HostRank(transport, segment_bytes).CheckPieces(solved, lengths);
        }
      });
    }
  }
}

// The stage holds all, or two blocks, or a small part of one.
TEST_P(RingTest, StagedAllreduce) {
  for (const int64_t count : {0, 1, 1000, 20'011}) {
    const SolvedAllreduce solved(
        {DataType::kFloat32, ReduceOp::kAverage, count, 0.5}, size());
    OnRanks([&](Transport& transport) {
      HostRank rank(transport, 1000);
      for (const int64_t stage_count :
           {count, StageBytes(rank.context(), solved.dtype) / 4,
            count / 40 + 1}) {
        rank.CheckStaged(solved, stage_count);
      }
    });
  }
}

TEST_P(RingTest, AllreduceIsTheSameOnAllRanks) {
  OnRanks([](Transport& transport) {
    for (const DataType dtype : kFloatTypes) {
      for (const ReduceOp op : kReduceOps) {
        HostRank(transport, 1000)
            .CheckIsTheSameOnAllRanks({dtype, op, 4097, /*postscale=*/1.0 / 3});
      }
    }
  });
}

TEST_P(RingTest, EveryCollective) {
  const auto few = Solve({{DataType::kInt32, ReduceOp::kSum, 101},
                          {DataType::kFloat32, ReduceOp::kAverage, 99, 0.25}});
  auto cases = Solve(EachTypeAndEachOp({0, 1, 7, 4097}));
  cases.emplace_back(AllreduceCase{DataType::kInt64, ReduceOp::kSum, 30'007},
                     size());
  OnRanks([&](Transport& transport) {
    HostRank(transport, 8).CheckAll(few, /*many=*/503);
    HostRank(transport, 1000).CheckAll(cases);
    HostRank(transport, 64 << 10).CheckAll(few, /*many=*/200'003);
  });
}

// The scratch of the ring is bounded whatever the size of the buffer; and a
// reduction reads from shared memory itself.
TEST(RingScratchTest, IsTwoSegmentsAndNoneInSharedMemory) {
  for (const Medium medium : {Medium::kInProcess, Medium::kSharedMemory}) {
    OnRanks(
        3,
        [&](Transport& transport) {
          std::vector<float> data(100'000);
          Workspace scratch(CpuKernels());
          const RingContext context{transport, CpuKernels(), 1000, scratch};
          const absl::Status status =
              RingAllreduce(context, {data.data(), data.data(), 100'000});
          EXPECT_TRUE(status.ok()) << status;
          EXPECT_EQ(scratch.bytes(), medium == Medium::kInProcess ? 2000 : 0);
        },
        medium);
  }
}

}  // namespace
}  // namespace tfring
