// The transports over MPI and within a node, and the ring over them, on as many
// ranks as mpirun starts.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/mpi_world.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/algorithms/ring/hierarchical.h"
#include "tfring_ops/transport/mpi/mpi.h"
#include "tfring_ops/transport/mpi/mpi_shared_memory.h"

namespace tfring {
namespace {

class MpiRingTest : public testing::TestWithParam<SharedMemory> {
 protected:
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }

  static Bytes BytesOf(int64_t& number) {
    return Bytes(reinterpret_cast<std::byte*>(&number), sizeof(number));
  }

  void Check(const AllreduceCase& c,
             const std::vector<int64_t>& segment_sizes) const {
    CheckAllreduce(*transport_, SolvedAllreduce(c, size()), segment_sizes);
  }

  const std::unique_ptr<Transport> transport_ = MakeWorldTransport(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Media, MpiRingTest,
                         testing::Values(SharedMemory::kNever,
                                         SharedMemory::kWithinNodes));

TEST_P(MpiRingTest, KnowsItsPlace) {
  int rank_in_world = -1, world_size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_in_world);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  EXPECT_EQ(rank(), rank_in_world);
  EXPECT_EQ(size(), world_size);
  EXPECT_EQ(transport_->CanPeek(next()),
            GetParam() == SharedMemory::kWithinNodes && size() > 1);
  for (int peer = 0; peer < size(); ++peer) {
    EXPECT_EQ(transport_->node_of(peer), transport_->node_of(rank()));
  }
}

TEST_P(MpiRingTest, MessagesArriveInOrderAndMayBeEmpty) {
  int64_t sent[] = {1, 2, 3}, received[] = {0, 0, 0};
  std::vector<OperationId> requests;
  for (int64_t& number : received) {
    requests.push_back(transport_->StartRecv(previous(), BytesOf(number)));
  }
  requests.push_back(transport_->StartRecv(previous(), {}));
  for (int64_t& number : sent) {
    requests.push_back(transport_->StartSend(next(), BytesOf(number)));
  }
  requests.push_back(transport_->StartSend(next(), {}));
  requests.push_back(kNoOperation);
  for (const OperationId request : requests) {
    const absl::Status status = transport_->Wait(request);
    EXPECT_TRUE(status.ok()) << status;
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(received[i], sent[i]);
}

// Around the sizes of what MPI gets, and more sends at once than it gets.
TEST_P(MpiRingTest, LongMessagesArriveWholeAndInOrder) {
  std::vector<size_t> sizes = {64512,   64513,       129024,
                               1032192, 1032192 + 1, 3 << 20};
  sizes.resize(60, 200'001);
  std::vector<std::vector<std::byte>> sent, received;
  std::vector<OperationId> requests;
  for (const size_t bytes : sizes) {
    auto& message = sent.emplace_back(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      message[i] = static_cast<std::byte>(i / 7 + sent.size());
    }
    received.emplace_back(bytes);
  }
  for (const auto& message : sent) {
    requests.push_back(transport_->StartSend(next(), message));
  }
  for (auto& message : received) {
    requests.push_back(
        transport_->StartRecv(previous(), absl::MakeSpan(message)));
  }
  for (const OperationId request : requests) {
    const absl::Status status = transport_->Wait(request);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(received, sent);
}

TEST_P(MpiRingTest, AMessageOfAnotherSizeIsAnError) {
  if (size() == 1) GTEST_SKIP() << "Open MPI cuts a message to oneself short";
  for (const size_t bytes : {4, 16}) {
    int64_t sent = 5, received[] = {0, 0};
    const OperationId receive = transport_->StartRecv(
        previous(), Bytes(reinterpret_cast<std::byte*>(received), bytes));
    const OperationId send = transport_->StartSend(next(), BytesOf(sent));
    EXPECT_FALSE(transport_->Wait(receive).ok());
    EXPECT_TRUE(transport_->Wait(send).ok());
  }
}

TEST_P(MpiRingTest, AnAbortReachesEveryRank) {
  if (size() == 1) GTEST_SKIP() << "nobody to tell";
  int64_t never = 0;
  if (rank() == size() - 1) {
    transport_->Abort(absl::UnavailableError("first"));
  } else {
    // The peer is alive, but sends nothing.
    const int peer = (rank() + 1) % (size() - 1);
    const absl::Status status =
        transport_->Wait(transport_->StartRecv(peer, BytesOf(never)));
    EXPECT_EQ(status, absl::UnavailableError("first"));
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(transport_->Wait(transport_->StartSend(next(), BytesOf(never))),
              absl::UnavailableError("first"));
    EXPECT_EQ(transport_->Test(transport_->StartRecv(next(), BytesOf(never)))
                  .status(),
              absl::UnavailableError("first"));
  }
  // No rank leaves before the others have received the abort.
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_P(MpiRingTest, AWaitEndsAtItsTimeout) {
  const auto hasty = MakeWorldTransport(GetParam(), /*timeout_seconds=*/0.2);
  int64_t never = 0;
  const absl::Status status =
      hasty->Wait(hasty->StartRecv(previous(), BytesOf(never)));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(IsTimeout(status));
  MPI_Barrier(MPI_COMM_WORLD);
  hasty->Abort(status);
}

TEST_P(MpiRingTest, AnAttendantLooksAndMayEndAWait) {
  const auto transport = MakeWorldTransport(GetParam());
  const absl::Status enough = absl::UnavailableError("enough");
  int looks = 0;
  transport->SetAttendant(
      [&] { return ++looks < 10 ? absl::OkStatus() : enough; });
  int64_t never = 0;
  const OperationId receive = transport->StartRecv(previous(), BytesOf(never));
  EXPECT_EQ(transport->Wait(receive), enough);
  EXPECT_EQ(looks, 10);
  MPI_Barrier(MPI_COMM_WORLD);
  transport->Abort(enough);
  EXPECT_FALSE(transport->HasAbandoned());
}

// One warning for the job, and the job goes on.
TEST_P(MpiRingTest, WhereARankCannotShareItsMemoryAllTalkByMpi) {
  // On one rank a file, also one in memory, may not have a single byte.
  const auto make_without_memory = [this] {
    rlimit limit{}, none{};
    getrlimit(RLIMIT_FSIZE, &limit);
    none.rlim_max = limit.rlim_max;
    if (rank() == size() - 1) setrlimit(RLIMIT_FSIZE, &none);
    const auto before = std::signal(SIGXFSZ, SIG_IGN);
    auto transport = MakeWorldTransport(GetParam());
    std::signal(SIGXFSZ, before);
    setrlimit(RLIMIT_FSIZE, &limit);
    return transport;
  };
  if (rank() == 0) testing::internal::CaptureStderr();
  const auto transport = make_without_memory();
  if (rank() == 0) {
    const std::string text = testing::internal::GetCapturedStderr();
    const bool warned = GetParam() == SharedMemory::kWithinNodes && size() > 1;
    EXPECT_EQ(text.find("cannot share memory") != std::string::npos, warned)
        << text;
  }
  EXPECT_FALSE(transport->CanPeek(next()));
  CheckAllreduce(
      *transport,
      SolvedAllreduce({DataType::kFloat32, ReduceOp::kSum, 1000}, size()),
      {1000});
}

TEST_P(MpiRingTest, AllreduceOfEveryTypeAndOp) {
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (const int64_t count : {0, 1, 2, 3, 7}) {
        Check({dtype, op, count}, {1, 512 << 10});
      }
      for (const int64_t count : {1000, 4097}) {
        Check({dtype, op, count}, {1000, 64 << 10});
      }
    }
  }
}

// Below and above the size at which MPI changes to rendezvous.
TEST_P(MpiRingTest, AllreduceOfAMillionElements) {
  for (const DataType dtype : kDataTypes) {
    Check({dtype, ReduceOp::kSum, 1'000'003}, {512 << 10});
  }
  Check({DataType::kFloat32, ReduceOp::kAverage, 1'000'003},
        {1000, 64 << 10, 64 << 20});
}

TEST_P(MpiRingTest, TheOtherAlgorithmsReduceToo) {
  const SolvedAllreduce solved({DataType::kFloat32, ReduceOp::kAverage, 4097},
                               size());
  CheckAllreduce(*transport_, solved, {1000, 64 << 10},
                 RecursiveDoublingAllreduce);
  if (size() == 1) return;
  CheckAllreduce(*transport_, solved, {1000, 64 << 10},
                 [&](const RingContext& ring, const RingBuffers& buffers) {
                   return HierarchicalAllreduce(RingGrid(ring, {1, size()}),
                                                buffers);
                 });
}

TEST_P(MpiRingTest, AllreduceIsTheSameOnAllRanks) {
  for (const DataType dtype : kFloatTypes) {
    for (const ReduceOp op : kReduceOps) {
      CheckAllreduceIsTheSameOnAllRanks(
          *transport_, {dtype, op, 4097, /*postscale=*/1.0 / 3}, 1000);
    }
  }
}

TEST_P(MpiRingTest, ReduceScatter) {
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (const int64_t count : {3, 100'003}) {
        std::vector<Range> chunks;
        for (int rank = 0; rank < size(); ++rank) {
          chunks.push_back(ChunkOf(count, size(), rank));
        }
        CheckReduceScatter(*transport_,
                           SolvedAllreduce({dtype, op, count}, size()), chunks,
                           64 << 10);
      }
    }
  }
}

TEST_P(MpiRingTest, AllgatherOfDifferingLengths) {
  for (std::vector<int64_t> bytes_of_rank : {std::vector<int64_t>{0, 0, 0, 0},
                                             {3, 0, 500'000, 1, 0, 7, 0, 9},
                                             {0, 9, 0, 0},
                                             {64, 64, 64, 64}}) {
    bytes_of_rank.resize(size());
    for (const int64_t segment_bytes : {1000, 512 << 10}) {
      CheckAllgather(*transport_, bytes_of_rank, segment_bytes);
    }
  }
}

TEST_P(MpiRingTest, AlltoallOfDifferingLengths) {
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
    for (const int64_t segment_bytes : {1000, 512 << 10}) {
      CheckAlltoall(*transport_, bytes, segment_bytes);
    }
  }
}

TEST_P(MpiRingTest, BroadcastFromEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    for (const int64_t bytes : {0, 1, 1000, 1'000'003}) {
      CheckBroadcast(*transport_, bytes, root, 64 << 10);
    }
    CheckBroadcast(*transport_, 1000, root, 8);
  }
}

}  // namespace
}  // namespace tfring
