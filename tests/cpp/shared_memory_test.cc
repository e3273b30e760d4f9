// The contract of transport.h through shared memory, for all pairs and for
// some. See transport_test.cc for the checks of every transport.
#include "tfring_ops/transport/shared_memory/shared_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

class SharedMemoryTest : public testing::TestWithParam<Medium> {
 protected:
  static Bytes BytesOf(int64_t& number) {
    return Bytes(reinterpret_cast<std::byte*>(&number), sizeof(number));
  }
  static Bytes BytesOf(std::string& text) {
    return Bytes(reinterpret_cast<std::byte*>(text.data()), text.size());
  }

  Transport& rank(int rank) { return *transports_[rank]; }

  // Ranks 0 and 1 share memory.
  std::vector<std::unique_ptr<Transport>> transports_ =
      MakeTransports(GetParam(), 3);
};
INSTANTIATE_TEST_SUITE_P(Media, SharedMemoryTest,
                         testing::Values(Medium::kSharedMemory,
                                         Medium::kNodesOfTwo));

TEST_P(SharedMemoryTest, KnowsItsNeighbours) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(rank(i).CanPeek(i));
  EXPECT_TRUE(rank(0).CanPeek(1));
  EXPECT_EQ(rank(0).CanPeek(2), GetParam() == Medium::kSharedMemory);
}

TEST_P(SharedMemoryTest, AMessageLongerThanTheRingNeedsItsReceiver) {
  std::string sent(100'000, 's'), received(100'000, 'r');
  const OperationId send = rank(0).StartSend(1, BytesOf(sent));
  EXPECT_FALSE(rank(0).Test(send).value());
  const OperationId receive = rank(1).StartRecv(0, BytesOf(received));
  bool is_sent = false, is_received = false;
  while (!is_sent || !is_received) {
    if (!is_sent) is_sent = rank(0).Test(send).value();
    if (!is_received) is_received = rank(1).Test(receive).value();
  }
  EXPECT_EQ(received, sent);
}

// Each rank waits for its own operations first, so it must serve its peers
// meanwhile.
TEST_P(SharedMemoryTest, WhoWaitsForOneServesAll) {
  OnThreads(3, [this](int self) {
    std::string sent(50'000, static_cast<char>('a' + self));
    std::string received[] = {sent, sent};
    std::vector<OperationId> requests;
    for (const int step : {1, 2}) {
      const int peer = (self + step) % 3;
      requests.push_back(rank(self).StartSend(peer, BytesOf(sent)));
      requests.push_back(
          rank(self).StartRecv(peer, BytesOf(received[step - 1])));
    }
    // Each rank waits for the requests in another order.
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(rank(self).Wait(requests[(i + self) % 4]).ok());
    }
    for (const int step : {1, 2}) {
      EXPECT_EQ(
          received[step - 1],
          std::string(50'000, static_cast<char>('a' + (self + step) % 3)));
    }
  });
}

TEST_P(SharedMemoryTest, PartsAreReadWhereTheyArrive) {
  OnThreads(2, [this](int self) {
    std::string sent(50'001, 's'), received;
    if (self == 0) {
      EXPECT_TRUE(rank(0).Wait(rank(0).StartSend(1, BytesOf(sent))).ok());
      return;
    }
    while (received.size() < sent.size()) {
      const ConstBytes part = rank(1).Peek(0, sent.size()).value();
      ASSERT_FALSE(part.empty());
      received.append(reinterpret_cast<const char*>(part.data()), part.size());
      rank(1).Release(0);
    }
    EXPECT_EQ(received, sent);
  });
}

TEST_P(SharedMemoryTest, AMessageOfAnotherSizeIsAnErrorOfItsReceiver) {
  int64_t sent = 5, received = 0;
  EXPECT_TRUE(rank(0).Wait(rank(0).StartSend(1, BytesOf(sent))).ok());
  const OperationId receive =
      rank(1).StartRecv(0, BytesOf(received).subspan(0, 4));
  EXPECT_EQ(rank(1).Wait(receive).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(rank(1).Peek(0, 4).status().code(), absl::StatusCode::kInternal);
}

TEST_P(SharedMemoryTest, AnAbortReachesWhoWaitsForAnother) {
  std::atomic<bool> waits[2] = {false, false};
  for (const int self : {0, 1}) {
    rank(self).SetAttendant([&waits, self] {
      waits[self] = true;
      return absl::OkStatus();
    });
  }
  OnThreads(3, [&](int self) {
    int64_t number = 0;
    if (self == 2) {
      while (!waits[0] || !waits[1]) std::this_thread::yield();
      rank(2).Abort(absl::UnavailableError("first"));
    } else {
      const int peer = 1 - self;
      EXPECT_EQ(self == 0 ? rank(0).Wait(rank(0).StartRecv(1, BytesOf(number)))
                          : rank(1).Peek(0, 8).status(),
                absl::UnavailableError("first"));
      rank(self).Abort(absl::UnavailableError("second"));
      EXPECT_EQ(rank(self).Wait(rank(self).StartSend(peer, BytesOf(number))),
                absl::UnavailableError("first"));
    }
    for (const int peer : {(self + 1) % 3, (self + 2) % 3}) {
      EXPECT_EQ(rank(self).Wait(rank(self).StartSend(peer, BytesOf(number))),
                absl::UnavailableError("first"));
      EXPECT_EQ(
          rank(self).Test(rank(self).StartRecv(peer, BytesOf(number))).status(),
          absl::UnavailableError("first"));
    }
    EXPECT_EQ(rank(self).Progress(), absl::UnavailableError("first"));
  });
}

// An idle engine looks only now and then.
TEST_P(SharedMemoryTest, ProgressSeesAnAbortAtOnce) {
  for (const int aborts : {1, 2}) {
    transports_ = MakeTransports(GetParam(), 3);
    EXPECT_EQ(rank(0).Progress(), absl::OkStatus());
    rank(aborts).Abort(absl::UnavailableError("end"));
    EXPECT_EQ(rank(0).Progress(), absl::UnavailableError("end"));
  }
}

// Messages of an aborted transport are never touched again.
TEST_P(SharedMemoryTest, BuffersAreFreeAfterAnAbort) {
  auto sent = std::make_unique<std::string>(100'000, 's');
  auto received = std::make_unique<std::string>(100'000, 'r');
  const OperationId send = rank(0).StartSend(1, BytesOf(*sent));
  const OperationId receive = rank(1).StartRecv(0, BytesOf(*received));
  EXPECT_FALSE(rank(1).Test(receive).value());
  for (const int self : {0, 1}) rank(self).Abort(absl::UnavailableError("end"));
  sent.reset();
  received.reset();
  EXPECT_FALSE(rank(0).Test(send).ok());
  EXPECT_FALSE(rank(1).Test(receive).ok());
}

TEST(SharedMemoryTimeoutTest, AWaitEndsAtItsTimeout) {
  const auto transports =
      MakeTransports(Medium::kSharedMemory, 2, kSmallRingBytes,
                     /*timeout_seconds=*/0.1);
  int64_t never = 0;
  const Bytes bytes(reinterpret_cast<std::byte*>(&never), sizeof(never));
  EXPECT_EQ(transports[0]->Wait(transports[0]->StartRecv(1, bytes)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

// A late answer must not be written to memory that has another use by then.
TEST(ExchangeTest, AnErrorAbortsTheTransport) {
  const auto transports =
      MakeTransports(Medium::kSharedMemory, 2, kSmallRingBytes, 0.01);
  EXPECT_FALSE(ExchangeOne(*transports[0], int64_t{1}).ok());
  EXPECT_FALSE(transports[0]->Progress().ok());
  const std::vector<std::byte> late(sizeof(int64_t));
  transports[1]->StartSend(0, late);
  EXPECT_FALSE(transports[0]->Progress().ok());
}

}  // namespace
}  // namespace tfring
