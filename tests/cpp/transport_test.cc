// The contract of transport.h, with ranks as threads.
#include "tfring_ops/transport/transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cpp/faulty_transport.h"
#include "tests/cpp/in_process_transport.h"
#include "tests/cpp/manual_clock.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/transport/counting.h"
#include "tfring_ops/transport/polling.h"

namespace tfring {
namespace {

class EveryTransportTest : public testing::TestWithParam<Medium> {
 protected:
  Transport& rank(int rank) { return *transports_[rank]; }

  std::vector<std::unique_ptr<Transport>> transports_ =
      MakeTransports(GetParam(), 3);
};
INSTANTIATE_TEST_SUITE_P(Media, EveryTransportTest,
                         testing::Values(Medium::kInProcess,
                                         Medium::kSharedMemory,
                                         Medium::kNodesOfTwo, Medium::kTcp));

class InProcessTransportTest : public testing::Test {
 protected:
  Transport& rank(int rank) { return *transports_[rank]; }

  std::vector<std::unique_ptr<Transport>> transports_ =
      MakeInProcessTransports(3);
};

TEST_P(EveryTransportTest, KnowsItsPlace) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(rank(i).rank(), i);
    EXPECT_EQ(rank(i).size(), 3);
  }
}

TEST_P(EveryTransportTest, AnAttendantLooksAndMayEndAWait) {
  const absl::Status enough = absl::UnavailableError("enough");
  int looks = 0;
  rank(0).SetAttendant(
      [&] { return ++looks % 5 != 0 ? absl::OkStatus() : enough; });
  int64_t never = 0;
  EXPECT_EQ(rank(0).Wait(rank(0).StartRecv(1, BytesOf(never))), enough);
  EXPECT_EQ(looks, 5);
  const absl::Status status =
      rank(0).CanPeek(2) ? rank(0).Peek(2, sizeof(never)).status()
                         : rank(0).Wait(rank(0).StartRecv(2, BytesOf(never)));
  EXPECT_EQ(status, enough);
  EXPECT_EQ(looks, 10);
  rank(0).Abort(enough);
}

// A look that takes long is taken less often.
TEST_P(EveryTransportTest, PollingTakesASmallPartOfTheTime) {
  constexpr std::chrono::microseconds kLook{200};
  ManualClock clock(/*per_reading=*/std::chrono::microseconds(10));
  int looks = 0;
  const auto attend = [&] {
    ++looks;
    clock.Advance(kLook);
    return absl::OkStatus();
  };
  const auto polling =
      MakePollingTransport(std::move(transports_[0]), attend, clock);
  const Clock::time_point begin = clock.Now();
  while (looks < 100) ASSERT_TRUE(polling->Progress().ok());
  EXPECT_GE(clock.Now() - begin, 100 * 16 * kLook);
  EXPECT_LE(clock.Now() - begin, 100 * 20 * kLook);
}

TEST_P(EveryTransportTest, MessagesOfOnePeerArriveInOrder) {
  int64_t sent[] = {1, 2, 3}, received[] = {0, 0, 0}, other = 9, of_other = 0;
  std::vector<OperationId> requests;
  for (int64_t& number : sent) {
    requests.push_back(rank(0).StartSend(1, BytesOf(number)));
  }
  // Another peer's message does not disturb this order.
  const OperationId other_send = rank(2).StartSend(1, BytesOf(other));
  const OperationId other_receive = rank(1).StartRecv(2, BytesOf(of_other));
  for (int64_t& number : received) {
    EXPECT_TRUE(rank(1).Wait(rank(1).StartRecv(0, BytesOf(number))).ok());
  }
  for (const OperationId request : requests) {
    EXPECT_TRUE(rank(0).Wait(request).ok());
  }
  EXPECT_TRUE(rank(2).Wait(other_send).ok());
  EXPECT_TRUE(rank(1).Wait(other_receive).ok());
  EXPECT_EQ(std::vector<int64_t>(received, received + 3),
            (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(of_other, 9);
}

TEST_P(EveryTransportTest, ZeroBytesAndNoRequestAreLegal) {
  for (const int peer : {1, 2}) {
    const OperationId send = rank(0).StartSend(peer, {});
    EXPECT_TRUE(rank(peer).Wait(rank(peer).StartRecv(0, {})).ok());
    EXPECT_TRUE(rank(0).Wait(send).ok());
  }
  EXPECT_TRUE(rank(0).Wait(kNoOperation).ok());
  EXPECT_TRUE(rank(0).Test(kNoOperation).value());
}

TEST(CountingTransportTest, CountsBytesByKindAndNode) {
  constexpr MessageKind kKind = 1;
  auto transports = MakeTransports(Medium::kNodesOfTwo, 3);
  const auto counting = MakeCountingTransport(std::move(transports[0]));
  const auto send = [&](int peer, size_t count) {
    std::vector<std::byte> sent(count), received(count);
    const OperationId receive =
        transports[peer]->StartRecv(0, Bytes(received.data(), received.size()));
    const OperationId sending =
        counting->StartSend(peer, ConstBytes(sent.data(), sent.size()));
    EXPECT_TRUE(transports[peer]->Wait(receive).ok());
    EXPECT_TRUE(counting->Wait(sending).ok());
  };
  const SentBytes control = SentBytesOf(kControlMessages);
  const SentBytes before = SentBytesOf(kKind);
  send(1, 3);
  {
    const CountedAs counted(*counting, kKind);
    send(1, 40);
    send(2, 500);
    send(2, 0);
    const CountedAs measured(*counting, kControlMessages);
    send(2, 6000);
  }
  send(2, 70'000);
  const SentBytes after = SentBytesOf(kKind);
  EXPECT_EQ(after.within_node - before.within_node, 40);
  EXPECT_EQ(after.between_nodes - before.between_nodes, 500);
  EXPECT_EQ(counting->counted_bytes(), 540);
  const SentBytes of_control = SentBytesOf(kControlMessages);
  EXPECT_EQ(of_control.within_node - control.within_node, 3);
  EXPECT_EQ(of_control.between_nodes - control.between_nodes, 76'000);
}

// The engine's transport is another one around it.
TEST(CountingTransportTest, CountsAResultThatIsSentWithARelease) {
  auto transports = MakeTransports(Medium::kSharedMemory, 3);
  const auto polling =
      MakePollingTransport(MakeCountingTransport(std::move(transports[0])),
                           [] { return absl::OkStatus(); });
  const CountedAs counted(*polling, 1);
  int64_t sent = 5, received = 0;
  EXPECT_TRUE(
      transports[1]->Wait(transports[1]->StartSend(0, BytesOf(sent))).ok());
  EXPECT_EQ(polling->Peek(1, sizeof(sent)).value().size(), sizeof(sent));
  const OperationId result = polling->ReleaseAndSend(1, 2, BytesOf(sent));
  EXPECT_TRUE(
      transports[2]->Wait(transports[2]->StartRecv(0, BytesOf(received))).ok());
  EXPECT_TRUE(polling->Wait(result).ok());
  EXPECT_EQ(received, 5);
  EXPECT_EQ(polling->counted_bytes(), sizeof(sent));
}

TEST_F(InProcessTransportTest, ASendCompletesOnlyWhenItsReceiveHasCopied) {
  int64_t sent = 5, received = 0;
  const OperationId send = rank(0).StartSend(1, BytesOf(sent));
  EXPECT_FALSE(rank(0).Test(send).value());
  EXPECT_TRUE(rank(1).Wait(rank(1).StartRecv(0, BytesOf(received))).ok());
  EXPECT_TRUE(rank(0).Test(send).value());
  EXPECT_EQ(received, 5);
}

TEST_F(InProcessTransportTest, AReceiveIsNotCompleteBeforeItsMessage) {
  int64_t sent = 5, received = 0;
  const OperationId receive = rank(1).StartRecv(0, BytesOf(received));
  EXPECT_FALSE(rank(1).Test(receive).value());
  EXPECT_TRUE(rank(0).Wait(rank(0).StartSend(1, BytesOf(sent))).ok());
  EXPECT_TRUE(rank(1).Test(receive).value());
  EXPECT_EQ(received, 5);
}

TEST_F(InProcessTransportTest, AMessageOfAnotherSizeIsAnErrorOfBoth) {
  int64_t sent = 5, received = 0;
  const OperationId send = rank(0).StartSend(1, BytesOf(sent));
  const OperationId receive =
      rank(1).StartRecv(0, BytesOf(received).subspan(0, 4));
  EXPECT_EQ(rank(0).Wait(send).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(rank(1).Test(receive).status().code(), absl::StatusCode::kInternal);
}

TEST_F(InProcessTransportTest, AbortFailsEverythingWithTheFirstReason) {
  int64_t number = 0;
  const OperationId send = rank(0).StartSend(1, BytesOf(number));
  const OperationId receive = rank(2).StartRecv(1, BytesOf(number));
  rank(1).Abort(absl::UnavailableError("first"));
  rank(2).Abort(absl::UnavailableError("second"));
  const OperationId later = rank(0).StartRecv(2, BytesOf(number));
  for (const absl::Status& status :
       {rank(0).Wait(send), rank(2).Test(receive).status(),
        rank(0).Wait(later)}) {
    EXPECT_EQ(status, absl::UnavailableError("first"));
  }
}

TEST_F(InProcessTransportTest, AFaultFailsThatOperationAndAllAfterIt) {
  int64_t sent = 5, received = 0;
  const auto faulty = MakeFaultyTransport(std::move(transports_[0]), 3);
  EXPECT_EQ(faulty->rank(), 0);
  EXPECT_EQ(faulty->size(), 3);
  const OperationId peer_receive = rank(1).StartRecv(0, BytesOf(received));
  const OperationId peer_send = rank(2).StartSend(0, BytesOf(sent));
  EXPECT_TRUE(faulty->Wait(faulty->StartSend(1, BytesOf(sent))).ok());
  EXPECT_TRUE(faulty->Wait(faulty->StartRecv(2, BytesOf(received))).ok());
  EXPECT_TRUE(rank(1).Wait(peer_receive).ok());
  EXPECT_TRUE(rank(2).Wait(peer_send).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(faulty->Wait(faulty->StartSend(1, BytesOf(sent))).code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(
        faulty->Test(faulty->StartRecv(2, BytesOf(received))).status().code(),
        absl::StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace tfring
