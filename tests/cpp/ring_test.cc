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

  static std::vector<AllreduceCase> EveryTypeAndOp(
      const std::vector<int64_t>& counts) {
    std::vector<AllreduceCase> cases;
    for (const DataType dtype : kDataTypes) {
      for (const ReduceOp op : kReduceOps) {
        for (const int64_t count : counts) cases.push_back({dtype, op, count});
      }
    }
    return cases;
  }

  // Not every type with every operation, which takes long with many elements.
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

  void CheckAllreduces(const std::vector<AllreduceCase>& cases,
                       const std::vector<int64_t>& segment_sizes) const {
    std::vector<SolvedAllreduce> solved;
    for (const AllreduceCase& c : cases) solved.emplace_back(c, size());
    OnRanks([&](Transport& transport) {
      for (const SolvedAllreduce& c : solved) {
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

// 8 bytes are one segment or many, as the dtype will have it.
TEST_P(RingTest, AllreduceOfFewElements) {
  CheckAllreduces(EveryTypeAndOp({0, 1, 2, 3, 7}), {8});
}

TEST_P(RingTest, AllreduceOfManyElements) {
  CheckAllreduces(EachTypeAndEachOp({1000, 4097}), {1000, 64 << 10});
}

TEST_P(RingTest, AllreduceInSegmentsOfAnySize) {
  // A segment of less than an element still carries one.
  CheckAllreduces({{DataType::kFloat64, ReduceOp::kSum, 1000},
                   {DataType::kInt8, ReduceOp::kMax, 1000}},
                  {1, 13, 24, 512 << 10});
  CheckAllreduces({{DataType::kFloat32, ReduceOp::kSum, 1},
                   {DataType::kFloat32, ReduceOp::kSum, 7},
                   {DataType::kFloat16, ReduceOp::kProduct, 7}},
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
  CheckAllreduces(cases, {1000});
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
          CheckAllreduceOfPieces(transport, solved, lengths, segment_bytes);
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
      Workspace scratch(CpuKernels());
      const RingContext context{transport, CpuKernels(), 1000, scratch};
      for (const int64_t stage_count :
           {count, StageBytes(context, solved.dtype) / 4, count / 40 + 1}) {
        CheckStagedAllreduce(transport, solved, stage_count, 1000);
      }
    });
  }
}

TEST_P(RingTest, AllreduceIsTheSameOnAllRanks) {
  OnRanks([](Transport& transport) {
    for (const DataType dtype : kFloatTypes) {
      for (const ReduceOp op : kReduceOps) {
        CheckAllreduceIsTheSameOnAllRanks(
            transport, {dtype, op, 4097, /*postscale=*/1.0 / 3}, 1000);
      }
    }
  });
}

TEST_P(RingTest, AllgatherOfDifferingLengths) {
  // By rank: all empty, one empty, one alone, equal, rising, mixed.
  const std::vector<std::vector<int64_t>> cases = {
      {0, 0, 0, 0, 0, 0, 0, 0},          {5, 0, 7, 1, 2, 3, 4, 5},
      {0, 0, 9, 0, 0, 0, 0, 0},          {64, 64, 64, 64, 64, 64, 64, 64},
      {1, 2, 3, 4, 5, 6, 7, 8},          {100'003, 0, 1, 4096, 0, 70'000, 3, 0},
      {0, 200'000, 8, 8, 8, 8, 8, 1'000}};
  OnRanks([&](Transport& transport) {
    for (std::vector<int64_t> bytes_of_rank : cases) {
      bytes_of_rank.resize(transport.size());
      for (const int64_t segment_bytes : {1000, 64 << 10}) {
        CheckAllgather(transport, bytes_of_rank, segment_bytes);
      }
    }
    CheckAllgather(transport, std::vector<int64_t>(transport.size(), 50), 8);
  });
}

TEST_P(RingTest, AlltoallOfDifferingLengths) {
  // Equal ones, none, and some of every kind.
  for (const int64_t unit : {40, 0, 1001}) {
    std::vector<std::vector<int64_t>> bytes(size());
    for (int from = 0; from < size(); ++from) {
      for (int to = 0; to < size(); ++to) {
        const bool equal = unit == 40;
        bytes[from].push_back(
            unit * (equal ? 1 : (3 * from + 5 * to + from * to) % 7));
      }
    }
    OnRanks([&](Transport& transport) {
      for (const int64_t segment_bytes : {8, 1000, 64 << 10}) {
        CheckAlltoall(transport, bytes, segment_bytes);
      }
    });
  }
}

TEST_P(RingTest, BroadcastFromEveryRoot) {
  OnRanks([](Transport& transport) {
    for (int root = 0; root < transport.size(); ++root) {
      for (const int64_t bytes : {0, 1, 7, 1000, 100'003}) {
        for (const int64_t segment_bytes : {1000, 64 << 10}) {
          CheckBroadcast(transport, bytes, root, segment_bytes);
        }
      }
      CheckBroadcast(transport, 100, root, 8);
    }
  });
}

TEST_P(RingTest, ReduceScatterInEqualChunks) {
  std::vector<SolvedAllreduce> solved;
  for (const AllreduceCase& c : EachTypeAndEachOp({0, 1, 7, 4097})) {
    solved.emplace_back(c, size());
  }
  solved.emplace_back(
      AllreduceCase{DataType::kFloat32, ReduceOp::kAverage, 1000, 0.25},
      size());
  solved.emplace_back(AllreduceCase{DataType::kInt64, ReduceOp::kSum, 30'007},
                      size());
  OnRanks([&](Transport& transport) {
    for (const SolvedAllreduce& c : solved) {
      std::vector<Range> chunks;
      for (int rank = 0; rank < size(); ++rank) {
        chunks.push_back(ChunkOf(c.count, size(), rank));
      }
      CheckReduceScatter(transport, c, chunks, 1000);
    }
  });
}

TEST_P(RingTest, ReduceScatterInChunksOfAnyLength) {
  // By rank: one has all, rising, some have none.
  const std::vector<std::vector<int64_t>> cases = {
      {0, 3000, 0, 0, 0, 0, 0, 0},
      {1, 2, 3, 4, 5, 6, 7, 8},
      {700, 0, 1, 4096, 0, 70, 0, 250}};
  for (std::vector<int64_t> lengths : cases) {
    lengths.resize(size());
    std::vector<Range> chunks;
    int64_t count = 0;
    for (const int64_t length : lengths) {
      chunks.push_back({count, length});
      count += length;
    }
    const SolvedAllreduce solved({DataType::kInt32, ReduceOp::kSum, count},
                                 size());
    OnRanks([&](Transport& transport) {
      for (const int64_t segment_bytes : {8, 1000, 64 << 10}) {
        CheckReduceScatter(transport, solved, chunks, segment_bytes);
      }
    });
  }
}

// The scratch of the ring is bounded whatever the size of the buffer.
TEST(RingScratchTest, IsTwoSegments) {
  OnRanks(3, [](Transport& transport) {
    std::vector<float> data(100'000);
    Workspace scratch(CpuKernels());
    const RingContext context{transport, CpuKernels(), 1000, scratch};
    const absl::Status status =
        RingAllreduce(context, {data.data(), data.data(), 100'000});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(scratch.bytes(), 2000);
  });
}

// A reduction reads from shared memory itself.
TEST(RingScratchTest, IsNoneInSharedMemory) {
  const auto body = [](Transport& transport) {
    std::vector<float> data(100'000);
    Workspace scratch(CpuKernels());
    const RingContext context{transport, CpuKernels(), 1000, scratch};
    const absl::Status status =
        RingAllreduce(context, {data.data(), data.data(), 100'000});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(scratch.bytes() == 0);
  };
  OnRanks(3, body, Medium::kSharedMemory);
}

}  // namespace
}  // namespace tfring
