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
#include "tfring_ops/transport/mpi/mpi.h"

namespace tfring {
namespace {

class MpiRingTest : public testing::TestWithParam<SharedMemory> {
 protected:
  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  int next() const { return (rank() + 1) % size(); }
  int previous() const { return (rank() + size() - 1) % size(); }

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

// The sizes include zero and the limits of an MPI message.  The test starts
// more sends at once than the transport passes to MPI at once.
TEST_P(MpiRingTest, MessagesOfAnySizeArriveWholeAndInOrder) {
  std::vector<size_t> sizes = {8,      0,       64512,       64513,
                               129024, 1032192, 1032192 + 1, 3 << 20};
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
  requests.push_back(kNoOperation);
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
  // No rank leaves before all ranks have received the abort.
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

// The job prints one warning and continues.
TEST_P(MpiRingTest, WhereARankCannotShareItsMemoryAllTalkByMpi) {
  // On one rank, no file may have a single byte, not even a file in memory.
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

// Below and above the size at which MPI changes to rendezvous.  Other types,
// and other algorithms, send bytes as these do.
TEST_P(MpiRingTest, EveryCollective) {
  for (const int64_t segment_bytes : {1000, 512 << 10}) {
    HostRank(*transport_, segment_bytes)
        .CheckAll(SolveSomeTypesAndOps(size()), /*many=*/1'000'003);
  }
  CheckAllreduce(
      *transport_,
      SolvedAllreduce({DataType::kFloat32, ReduceOp::kAverage, 1'000'003},
                      size()),
      {1000, 512 << 10, 64 << 20});
}

}  // namespace
}  // namespace tfring
