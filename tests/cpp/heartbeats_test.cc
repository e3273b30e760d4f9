// Detection of silent ranks, with a manual clock.
#include "tfring_ops/engine/negotiation/heartbeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/in_process_transport.h"

namespace tfring {
namespace {

using Clock = Heartbeats::Clock;
using Ranks = std::vector<int32_t>;

class HeartbeatsTest : public testing::Test {
 protected:
  static constexpr int kSize = 4;

  static Options MakeOptions() {
    Options options;
    options.stall_check_seconds = 30;
    options.stall_shutdown_seconds = 600;
    return options;
  }

  HeartbeatsTest() {
    for (int rank = 0; rank < kSize; ++rank) {
      mailboxes_.push_back(std::make_unique<Mailbox>(*transports_[rank]));
      ranks_.push_back(std::make_unique<Heartbeats>(MakeOptions(), rank, kSize,
                                                    *mailboxes_[rank], begin_));
    }
  }

  // All ranks but `stopped` look twenty times a second.
  void Pass(double seconds, const Ranks& stopped = {}) {
    for (int look = 0; look < 20 * seconds; ++look) {
      now_ += std::chrono::milliseconds(50);
      for (int rank = 0; rank < kSize; ++rank) {
        if (std::count(stopped.begin(), stopped.end(), rank) > 0) continue;
        EXPECT_TRUE(mailboxes_[rank]->Collect().ok());
        EXPECT_TRUE(ranks_[rank]->Look(now_).ok());
      }
    }
  }

  Ranks SilentFor(int rank) {
    Ranks silent;
    for (const Heartbeats::Silent& one : ranks_[rank]->silent()) {
      silent.push_back(one.rank);
    }
    return silent;
  }

  const std::vector<std::unique_ptr<Transport>> transports_ =
      MakeInProcessTransports(kSize);
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point now_ = begin_;
  std::vector<std::unique_ptr<Heartbeats>> ranks_;
};

TEST_F(HeartbeatsTest, OneThatSendsNothingIsSilentForAll) {
  Pass(23, /*stopped=*/{2});
  for (const int rank : {0, 1, 3}) EXPECT_EQ(SilentFor(rank), Ranks());
  Pass(5, /*stopped=*/{2});
  for (const int rank : {0, 1, 3}) EXPECT_EQ(SilentFor(rank), Ranks({2}));
  const std::chrono::duration<double> since =
      now_ - ranks_[3]->silent()[0].since;
  EXPECT_NEAR(since.count(), 28, 1);
}

TEST_F(HeartbeatsTest, TheCoordinatorIsWatchedByAll) {
  Pass(28, /*stopped=*/{0});
  for (const int rank : {1, 2, 3}) EXPECT_EQ(SilentFor(rank), Ranks({0}));
}

TEST_F(HeartbeatsTest, OneThatGoesOnIsHeardAgainAndBlamesNobody) {
  Pass(28, /*stopped=*/{2, 3});
  EXPECT_EQ(SilentFor(1), Ranks({2, 3}));
  for (int look = 0; look < 5; ++look) {
    Pass(0.5, /*stopped=*/{3});
    EXPECT_THAT(SilentFor(2), testing::AnyOf(Ranks(), Ranks({3})));
  }
  for (const int rank : {0, 1}) EXPECT_EQ(SilentFor(rank), Ranks({3}));
  Pass(3);
  for (int rank = 0; rank < kSize; ++rank) EXPECT_EQ(SilentFor(rank), Ranks());
}

TEST_F(HeartbeatsTest, AllThatSleepAtOnceWakeWithoutBlame) {
  Pass(5);
  now_ += std::chrono::hours(1);
  for (int look = 0; look < 100; ++look) {
    Pass(0.05);
    for (int rank = 0; rank < kSize; ++rank) {
      EXPECT_EQ(SilentFor(rank), Ranks());
    }
  }
}

// After a last message nothing is read, and nothing is sent.
TEST_F(HeartbeatsTest, OneThatHasLeftIsNotMissed) {
  ranks_[3]->StopSending();
  ranks_[0]->StopListening(3);
  Pass(40, /*stopped=*/{3});
  for (const int rank : {0, 1, 2}) EXPECT_EQ(SilentFor(rank), Ranks());
}

TEST_F(HeartbeatsTest, MessagesWaitWhileHeartbeatsAreHeard) {
  mailboxes_[1]->Send(0, std::make_shared<const std::string>("request"));
  Pass(5);
  const auto message = mailboxes_[0]->Poll(1);
  ASSERT_TRUE(message.ok() && message->has_value());
  EXPECT_EQ(**message, "request");
}

TEST_F(HeartbeatsTest, FewAreSent) {
  Pass(100);
  EXPECT_LE(mailboxes_[1]->sent(), 101);
  EXPECT_GE(mailboxes_[1]->sent(), 90);
  EXPECT_LE(mailboxes_[0]->sent(), 101 * (kSize - 1));
}

TEST_F(HeartbeatsTest, NoneAreSentWhereNobodyWantsToKnow) {
  Options options = MakeOptions();
  options.stall_check_seconds = options.stall_shutdown_seconds = 0;
  for (int rank = 0; rank < kSize; ++rank) {
    ranks_[rank] = std::make_unique<Heartbeats>(options, rank, kSize,
                                                *mailboxes_[rank], begin_);
  }
  Pass(100);
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(mailboxes_[rank]->sent(), 0);
  }
}

}  // namespace
}  // namespace tfring
