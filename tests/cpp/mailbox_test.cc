#include "tfring_ops/engine/negotiation/mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/faulty_transport.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/in_process_transport.h"
#include "tests/cpp/ranks.h"

namespace tfring {
namespace {

std::shared_ptr<const std::string> Message(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

// Both ends on one thread, which works because a mailbox never waits.
class MailboxTest : public testing::Test {
 protected:
  // The next message from rank `from` to rank `to`; nothing if it is not here
  // after as many looks as a message can need.
  std::optional<std::string> Receive(int to, int from) {
    for (int look = 0; look < 3; ++look) {
      auto message = mailboxes_[to].Poll(from);
      EXPECT_TRUE(message.ok()) << message.status();
      if (!message.ok() || *message) return *std::move(message);
    }
    return std::nullopt;
  }

  std::vector<std::unique_ptr<Transport>> transports_ =
      MakeInProcessTransports(3);
  Mailbox mailboxes_[3] = {Mailbox(*transports_[0]), Mailbox(*transports_[1]),
                           Mailbox(*transports_[2])};
};

TEST_F(MailboxTest, MessagesOfAnyLengthArriveInOrder) {
  std::vector<std::string> texts = {"first", "", std::string(1 << 20, 'x')};
  // Around the size that fits a message's head.
  for (size_t size = 50; size < 70; ++size) texts.emplace_back(size, 'y');
  for (const std::string& text : texts) {
    mailboxes_[0].Send(1, Message(text));
  }
  for (const std::string& text : texts) EXPECT_EQ(Receive(1, 0), text);
  EXPECT_EQ(Receive(1, 0), std::nullopt);
  EXPECT_TRUE(mailboxes_[0].Flush().ok());
}

TEST_F(MailboxTest, ALookBeforeTheMessageFindsNothing) {
  EXPECT_EQ(Receive(1, 0), std::nullopt);
  mailboxes_[0].Send(1, Message("now"));
  EXPECT_EQ(Receive(1, 0), "now");
}

TEST_F(MailboxTest, AShortMessageIsOneSend) {
  std::atomic<int> sends{0};
  auto transports = MakeInProcessTransports(2);
  const auto counted = CountSends(std::move(transports[0]), sends);
  Mailbox sender(*counted), receiver(*transports[1]);
  sender.Send(1, Message("short"));
  EXPECT_EQ(sends, 1);
  EXPECT_EQ(receiver.Poll(0).value(), "short");
  EXPECT_TRUE(sender.Flush().ok());
}

TEST_F(MailboxTest, PeersDoNotWaitForEachOther) {
  EXPECT_EQ(Receive(1, 0), std::nullopt);
  const auto message = Message("to all");
  for (const int peer : {0, 1}) mailboxes_[2].Send(peer, message);
  EXPECT_EQ(Receive(1, 2), "to all");
  mailboxes_[1].Send(2, Message("answer"));
  EXPECT_EQ(Receive(2, 1), "answer");
  EXPECT_EQ(Receive(0, 2), "to all");
}

TEST_F(MailboxTest, FlushWaitsUntilThePeerHasTakenEverything) {
  OnThreads(2, [this](int rank) {
    if (rank == 0) {
      mailboxes_[0].Send(1, Message("a"));
      mailboxes_[0].Send(1, Message("b"));
      EXPECT_TRUE(mailboxes_[0].Flush().ok());
    } else {
      std::string received;
      while (received.size() < 2) received += Receive(1, 0).value_or("");
      EXPECT_EQ(received, "ab");
    }
  });
}

TEST_F(MailboxTest, AFailedSendIsSeenAtTheNextCollectOrFlush) {
  for (const bool flush : {false, true}) {
    // A receive is posted, and nothing is sent.
    const auto faulty = MakeFaultyTransport(
        std::move(MakeInProcessTransports(2)[0]), /*failing_operation=*/2);
    Mailbox mailbox(*faulty);
    EXPECT_TRUE(mailbox.Poll(1).ok());
    mailbox.Send(1, Message("lost"));
    // Poll looks at no message on its way out, because there is a Poll for each
    // peer in every round.
    EXPECT_TRUE(mailbox.Poll(1).ok());
    const absl::Status status = flush ? mailbox.Flush() : mailbox.Collect();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(MailboxTest, AnAbortReachesEveryLook) {
  EXPECT_EQ(Receive(1, 0), std::nullopt);
  transports_[2]->Abort(absl::UnavailableError("gone"));
  EXPECT_EQ(mailboxes_[1].Poll(0).status(), absl::UnavailableError("gone"));
  EXPECT_EQ(mailboxes_[0].Poll(1).status(), absl::UnavailableError("gone"));
}

}  // namespace
}  // namespace tfring
