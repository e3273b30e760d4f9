// Properties of TCP beyond the contract of transport.h: all ways to lose a
// rank, and buffers that TCP fills.
#include "tfring_ops/transport/tcp/tcp.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/manual_clock.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/tcp_sockets.h"

namespace tfring {
namespace {

// More than the kernel takes before somebody reads.
constexpr size_t kHuge = 32 << 20;

template <typename T>
Bytes BytesOf(std::vector<T>& data) {
  return Bytes(reinterpret_cast<std::byte*>(data.data()),
               data.size() * sizeof(T));
}

class TcpTest : public testing::Test {
 protected:
  static constexpr int kSize = 3;

  Transport& rank(int rank) { return *transports_[rank]; }

  // Every later operation of rank `i` fails, and soon, also with another rank.
  void ExpectFails(int i, const absl::Status& status) {
    for (const int next : {(i + 1) % kSize, (i + 2) % kSize}) {
      std::vector<int64_t> never(1);
      EXPECT_EQ(rank(i).Wait(rank(i).StartRecv(next, BytesOf(never))), status);
      EXPECT_EQ(rank(i).Progress(), status);
      EXPECT_EQ(rank(i).Wait(rank(i).StartSend(next, BytesOf(never))), status);
      EXPECT_EQ(rank(i).Test(rank(i).StartSend(next, {})).status(), status);
    }
  }

  const std::vector<std::vector<int>> sockets_ = ConnectedSockets(kSize);
  std::vector<std::unique_ptr<Transport>> transports_ = [this] {
    std::vector<std::unique_ptr<Transport>> transports;
    for (int rank = 0; rank < kSize; ++rank) {
      transports.push_back(MakeTcpTransport(rank, {0, 1, 2}, sockets_[rank],
                                            /*timeout_seconds=*/20)
                               .value());
    }
    return transports;
  }();
};

TEST_F(TcpTest, HugeMessagesCrossBothWaysAtOnce) {
  // Before anything is sent: who takes nothing for long is cut off.
  using Messages = std::vector<std::vector<uint8_t>>;
  std::vector<Messages> sent(kSize, Messages(kSize)), received = sent;
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) {
      if (i == j) continue;
      sent[i][j].assign(kHuge, static_cast<uint8_t>(10 * i + j));
      received[i][j].resize(kHuge);
    }
  }
  OnThreads(kSize, [&](int self) {
    std::vector<OperationId> operations;
    for (int peer = 0; peer < kSize; ++peer) {
      if (peer == self) continue;
      operations.push_back(
          rank(self).StartRecv(peer, BytesOf(received[self][peer])));
      operations.push_back(
          rank(self).StartSend(peer, BytesOf(sent[self][peer])));
    }
    for (const OperationId operation : operations) {
      ASSERT_EQ(rank(self).Wait(operation), absl::OkStatus());
    }
  });
  for (int i = 0; i < kSize; ++i) {
    for (int j = 0; j < kSize; ++j) EXPECT_EQ(received[i][j], sent[j][i]);
  }
}

// Sizes by a seed, all sends first, receives in the order of another seed
// between them, and every byte is looked at.
TEST_F(TcpTest, ManyMessagesOfAllSizesComeInOrder) {
  constexpr int kMessages = 3000;
  OnThreads(2, [&](int self) {
    std::mt19937 sizes(7), turns(static_cast<unsigned>(self));
    std::vector<std::vector<uint16_t>> sent(kMessages), received(kMessages);
    std::vector<OperationId> sends, receives;
    for (int i = 0; i < kMessages; ++i) {
      const size_t size = sizes() % 100 == 0 ? sizes() % 300'000 : sizes() % 9;
      sent[i].assign(size, static_cast<uint16_t>(i + 7 * self));
      received[i].resize(size);
    }
    Transport& own = rank(self);
    while (sends.size() + receives.size() < 2 * kMessages) {
      if (receives.size() == kMessages ||
          (sends.size() < kMessages && turns() % 2 == 0)) {
        sends.push_back(own.StartSend(1 - self, BytesOf(sent[sends.size()])));
      } else {
        receives.push_back(
            own.StartRecv(1 - self, BytesOf(received[receives.size()])));
      }
      if (turns() % 5 == 0 && !receives.empty()) {
        ASSERT_TRUE(own.Test(receives[turns() % receives.size()]).ok());
      }
    }
    for (const auto* operations : {&receives, &sends}) {
      for (const OperationId operation : *operations) {
        ASSERT_TRUE(own.Wait(operation).ok());
      }
    }
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_EQ(received[i],
                std::vector<uint16_t>(
                    sent[i].size(), static_cast<uint16_t>(i + 7 * (1 - self))))
          << i;
    }
  });
}

TEST_F(TcpTest, AnAbortFailsAllWithTheFirstReason) {
  // Behind a message that nobody has asked for.
  std::vector<int64_t> unread(1000);
  EXPECT_TRUE(rank(1).Wait(rank(1).StartSend(0, BytesOf(unread))).ok());
  const absl::Status reason = absl::AbortedError("enough");
  rank(1).Abort(reason);
  rank(1).Abort(absl::UnavailableError("later"));
  EXPECT_FALSE(rank(1).HasAbandoned());
  ExpectFails(1, reason);
  std::vector<int64_t> never(1);
  const OperationId waits = rank(0).StartRecv(2, BytesOf(never));
  EXPECT_EQ(rank(0).Wait(waits), reason);
  ExpectFails(0, reason);
  // It hears of it where it waits for rank 1.
  EXPECT_EQ(rank(2).Wait(rank(2).StartRecv(1, BytesOf(unread))), reason);
  ExpectFails(2, reason);
}

// TCP does not send more of them before the peer acknowledges some, which it
// puts off for 40 to 200 ms if it has sent data itself.
TEST_F(TcpTest, AnAbortIsHeardBehindManySmallMessages) {
  std::vector<int64_t> sent(1), received(1);
  for (int i = 0; i < 50; ++i) {
    for (const int from : {0, 1}) {
      EXPECT_TRUE(
          rank(from).Wait(rank(from).StartSend(1 - from, BytesOf(sent))).ok());
      EXPECT_TRUE(rank(1 - from)
                      .Wait(rank(1 - from).StartRecv(from, BytesOf(received)))
                      .ok());
    }
  }
  for (int i = 0; i < 500; ++i) {
    EXPECT_TRUE(rank(1).Wait(rank(1).StartSend(0, BytesOf(sent))).ok());
  }
  const absl::Status reason = absl::AbortedError("enough");
  rank(1).Abort(reason);
  absl::Status status;
  for (int i = 0; i < 501 && status.ok(); ++i) {
    status = rank(0).Wait(rank(0).StartRecv(1, BytesOf(received)));
  }
  EXPECT_EQ(status, reason);
}

TEST_F(TcpTest, AnAbortFreesBuffersThatAreStuck) {
  auto data = std::make_unique<std::vector<uint8_t>>(kHuge);
  const OperationId send = rank(1).StartSend(2, BytesOf(*data));
  EXPECT_FALSE(rank(1).Test(send).value());
  const absl::Status reason = absl::AbortedError("enough");
  rank(1).Abort(reason);
  data.reset();
  EXPECT_EQ(rank(1).Wait(send), reason);
  std::vector<int64_t> never(1);
  EXPECT_EQ(rank(2).Wait(rank(2).StartRecv(0, BytesOf(never))),
            absl::UnavailableError(
                "rank 1 cannot be reached: Connection reset by peer"));
}

TEST_F(TcpTest, TheEndOfATransportLosesNothing) {
  std::vector<int64_t> sent(1000, 5), received(1000), unread(1000);
  // Messages that rank 0 has not read at its end cause no loss on the remaining
  // ranks.
  const OperationId lost = rank(2).StartSend(0, BytesOf(unread));
  EXPECT_TRUE(rank(2).Wait(lost).ok());
  EXPECT_TRUE(rank(0).Wait(rank(0).StartSend(1, BytesOf(sent))).ok());
  transports_[0].reset();
  // A rank that is done is not lost.
  const auto expect_progress = [&] {
    for (const int other : {1, 2, 1, 2, 1, 2}) {
      ASSERT_EQ(rank(other).Progress(), absl::OkStatus());
    }
  };
  expect_progress();
  EXPECT_TRUE(rank(1).Wait(rank(1).StartRecv(0, BytesOf(received))).ok());
  EXPECT_EQ(received, sent);
  expect_progress();
  EXPECT_TRUE(rank(2).Wait(rank(2).StartSend(1, BytesOf(sent))).ok());
  EXPECT_TRUE(rank(1).Wait(rank(1).StartRecv(2, BytesOf(received))).ok());
  const absl::Status status =
      rank(1).Wait(rank(1).StartRecv(0, BytesOf(received)));
  EXPECT_EQ(status.message(), "rank 0 cannot be reached: it has ended");
}

// Ranks that share memory have nothing in flight on their connection.
TEST_F(TcpTest, ALostRankIsHeardWhereNothingIsInFlight) {
  ASSERT_TRUE(rank(1).Progress().ok());
  for (const int peer : {0, 2}) shutdown(sockets_[0][peer], SHUT_RDWR);
  const absl::Status status =
      absl::UnavailableError("rank 0 cannot be reached: it has ended");
  EXPECT_EQ(rank(1).Progress(), absl::OkStatus()) << "not connected any more";
  shutdown(sockets_[0][1], SHUT_RDWR);
  EXPECT_EQ(rank(1).Progress(), status);
  ExpectFails(1, status);
}

TEST_F(TcpTest, AConnectionThatIsResetSaysSo) {
  ASSERT_TRUE(rank(1).Progress().ok());
  sockaddr nowhere{};
  nowhere.sa_family = AF_UNSPEC;
  ASSERT_EQ(connect(sockets_[0][1], &nowhere, sizeof(nowhere)), 0);
  EXPECT_EQ(rank(1).Progress(),
            absl::UnavailableError(
                "rank 0 cannot be reached: Connection reset by peer"));
}

TEST_F(TcpTest, ALostRankIsHeardBehindWhatItHasSent) {
  std::vector<int64_t> sent(1000, 5), received(1000);
  EXPECT_TRUE(rank(0).Wait(rank(0).StartSend(1, BytesOf(sent))).ok());
  shutdown(sockets_[0][1], SHUT_WR);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(rank(1).Progress().ok());
  ASSERT_TRUE(rank(1).Wait(rank(1).StartRecv(0, BytesOf(received))).ok());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(rank(1).Progress(),
            absl::UnavailableError("rank 0 cannot be reached: it has ended"));
}

TEST_F(TcpTest, ASizeThatDiffersIsAnError) {
  std::vector<int64_t> sent(2), received(1);
  EXPECT_TRUE(rank(0).Wait(rank(0).StartSend(1, BytesOf(sent))).ok());
  const absl::Status status =
      rank(1).Wait(rank(1).StartRecv(0, BytesOf(received)));
  EXPECT_EQ(status,
            absl::InternalError("a message of 16 bytes met a receive of 8"));
  for (int i = 0; i < kSize; ++i) ExpectFails(i, status);
}

TEST_F(TcpTest, AWaitHasALimitWhereNothingMoves) {
  const ManualClock clock(/*per_reading=*/std::chrono::seconds(1));
  const Clock::time_point begin = clock.Now();
  const auto sockets = ConnectedSockets(2);
  const auto transport = MakeTcpTransport(0, {0, 1}, sockets[0],
                                          /*timeout_seconds=*/20, clock)
                             .value();
  std::vector<int64_t> never(1);
  const absl::Status status =
      transport->Wait(transport->StartRecv(1, BytesOf(never)));
  EXPECT_TRUE(IsTimeout(status)) << status;
  EXPECT_GT(clock.Now() - begin, std::chrono::seconds(20));
  EXPECT_LT(clock.Now() - begin, std::chrono::seconds(25));
}

TEST_F(TcpTest, AChildDoesNotHoldTheSockets) {
  for (int peer = 1; peer < kSize; ++peer) {
    EXPECT_NE(fcntl(sockets_[0][peer], F_GETFD) & FD_CLOEXEC, 0);
  }
}

// Two ranks that connect when it is needed; rank 1 is to ask.
class LateTcpTest : public testing::Test {
 protected:
  Transport& rank(int rank) { return *transports_[rank]; }

  std::vector<std::unique_ptr<Transport>> transports_ =
      MakeTransports(Medium::kTcpLater, 2);
};

TEST_F(LateTcpTest, WhatIsStartedBeforeTheConnectionGoesByIt) {
  std::vector<int64_t> sent(1000, 5), received(1000), nothing;
  const OperationId first = rank(0).StartSend(1, BytesOf(sent));
  const OperationId second = rank(0).StartSend(1, {});
  EXPECT_FALSE(rank(0).Test(first).value());
  EXPECT_EQ(rank(0).Progress(), absl::OkStatus());
  const OperationId receive = rank(1).StartRecv(0, BytesOf(received));
  EXPECT_EQ(rank(0).Wait(second), absl::OkStatus());
  EXPECT_EQ(rank(1).Wait(receive), absl::OkStatus());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(rank(1).Wait(rank(1).StartRecv(0, BytesOf(nothing))),
            absl::OkStatus());
}

TEST_F(LateTcpTest, AnAbortFreesWhatWaitsForTheConnection) {
  std::vector<int64_t> data(1000);
  const OperationId receive = rank(0).StartRecv(1, BytesOf(data));
  const absl::Status reason = absl::AbortedError("enough");
  rank(0).Abort(reason);
  EXPECT_EQ(rank(0).Wait(receive), reason);
  EXPECT_EQ(rank(0).Wait(rank(0).StartSend(1, BytesOf(data))), reason);
  EXPECT_EQ(rank(0).Progress(), reason);
}

// An engine returns this error when its control channel has detected the loss.
TEST_F(LateTcpTest, AnAttendantEndsTheWaitForAConnection) {
  const absl::Status lost = absl::UnavailableError("rank 1 is lost");
  rank(0).SetAttendant([&] { return lost; });
  std::vector<int64_t> never(1);
  EXPECT_EQ(rank(0).Wait(rank(0).StartRecv(1, BytesOf(never))), lost);
}

TEST(LateTcpErrorsTest, APeerThatCannotBeConnectedIsLost) {
  const auto transport =
      MakeTcpTransport(1, {0, 1}, {kNotYet, kNotYet}, 0, SteadyClock(),
                       [](int) { return absl::UnavailableError("no route"); })
          .value();
  const absl::Status status = transport->Wait(transport->StartSend(0, Bytes()));
  EXPECT_EQ(status,
            absl::UnavailableError("rank 0 cannot be reached: no route"));
}

TEST(LateTcpErrorsTest, AWaitForAConnectionHasALimit) {
  const ManualClock clock(/*per_reading=*/std::chrono::seconds(1));
  const auto transport =
      MakeTcpTransport(0, {0, 1}, {kNotYet, kNotYet}, /*timeout_seconds=*/20,
                       clock, [](int) { return kNotYet; })
          .value();
  std::vector<int64_t> never(1);
  EXPECT_TRUE(
      IsTimeout(transport->Wait(transport->StartRecv(1, BytesOf(never)))));
}

TEST(MakeTcpTransportTest, TakesConnectionsOnly) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(MakeTcpTransport(0, {0, 1}, {-1, pipe_ends[0]}, 0).status().code(),
            absl::StatusCode::kInternal);
  close(pipe_ends[1]);
}

}  // namespace
}  // namespace tfring
