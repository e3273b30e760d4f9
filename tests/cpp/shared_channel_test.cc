// A channel through a ring smaller than its messages.
#include "tfring_ops/transport/shared_memory/shared_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tfring_ops/base/backoff.h"

namespace tfring {
namespace {

ConstBytes BytesOf(const std::string& text) {
  return ConstBytes(reinterpret_cast<const std::byte*>(text.data()),
                    text.size());
}

Bytes BytesOf(std::string& text) {
  return Bytes(reinterpret_cast<std::byte*>(text.data()), text.size());
}

// Text with a period of 251 characters, so that a misplaced part is detected.
std::string Text(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text.push_back(static_cast<char>(i % 251));
  }
  return text;
}

// Moves messages of these sizes from one thread to another.
void PassOnThreads(ChannelWriter& writer, ChannelReader& reader, int messages,
                   const std::function<size_t(int)>& bytes) {
  OnThreads(2, [&](int rank) {
    for (int i = 0; i < messages; ++i) {
      const std::string sent = Text(bytes(i));
      std::string received(sent.size(), '?');
      for (Backoff backoff;; backoff.Pause()) {
        if (rank == 0 ? writer.Write(BytesOf(sent))
                      : reader.Read(BytesOf(received)).value()) {
          break;
        }
      }
      if (rank == 1) {
        ASSERT_TRUE(received == sent) << i;
      }
    }
  });
}

class SharedChannelTest : public testing::Test {
 protected:
  static constexpr size_t kRingBytes = 4 * kPartAlignment;

  // Moves a message through the channel.  Writer and reader take turns.
  std::string Pass(const std::string& sent) {
    std::string received(sent.size(), '?');
    for (bool in = false, out = false; !out;) {
      if (!in) in = writer_.Write(BytesOf(sent));
      out = reader_.Read(BytesOf(received)).value();
    }
    return received;
  }

  struct {
    SharedChannel channel;
    std::byte ring[kRingBytes];
  } memory_{};
  ChannelWriter writer_{&memory_.channel, kRingBytes};
  ChannelReader reader_{&memory_.channel, kRingBytes};
};

TEST_F(SharedChannelTest, PassesMessagesOfEverySize) {
  for (size_t bytes = 0; bytes <= 3 * kRingBytes; ++bytes) {
    const std::string text = Text(bytes);
    ASSERT_TRUE(Pass(text) == text) << bytes;
  }
}

TEST_F(SharedChannelTest, KeepsMessagesInOrderAndApart) {
  std::string first(1, '?'), second, third(2, '?');
  EXPECT_TRUE(writer_.Write(BytesOf(std::string("a"))));
  EXPECT_TRUE(writer_.Write({}));
  EXPECT_FALSE(writer_.Write(BytesOf(std::string("bc"))));
  EXPECT_TRUE(reader_.Read(BytesOf(first)).value());
  EXPECT_TRUE(writer_.Write(BytesOf(std::string("bc"))));
  EXPECT_TRUE(reader_.Read(BytesOf(second)).value());
  EXPECT_TRUE(reader_.Read(BytesOf(third)).value());
  EXPECT_FALSE(reader_.Read(BytesOf(third)).value());
  EXPECT_EQ(first + second + third, "abc");
}

TEST_F(SharedChannelTest, APartIsReadWhereItArrived) {
  const std::string sent = Text(3 * kPartAlignment + 1);
  std::string received;
  EXPECT_TRUE(reader_.Peek(sent.size()).value().empty());
  bool written = writer_.Write(BytesOf(sent));
  EXPECT_FALSE(written);
  while (received.size() < sent.size()) {
    const ConstBytes part = reader_.Peek(sent.size()).value();
    const bool last = received.size() + part.size() == sent.size();
    EXPECT_TRUE(last || part.size() % kPartAlignment == 0) << part.size();
    EXPECT_GE(part.data(), memory_.ring);
    EXPECT_LE(part.data() + part.size(), memory_.ring + kRingBytes);
    received.append(reinterpret_cast<const char*>(part.data()), part.size());
    reader_.Release();
    if (!written) written = writer_.Write(BytesOf(sent));
  }
  EXPECT_EQ(received, sent);
  EXPECT_EQ(Pass("then"), "then");
}

TEST_F(SharedChannelTest, AMessageOfAnotherSizeIsAnErrorForGood) {
  std::string buffer(4, '?');
  EXPECT_TRUE(writer_.Write(BytesOf(std::string("12345678"))));
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = reader_.Read(BytesOf(buffer)).status();
    EXPECT_EQ(status,
              absl::InternalError("a message of 8 bytes met a receive of 4"));
    EXPECT_EQ(reader_.Peek(4).status(), status);
  }
}

TEST_F(SharedChannelTest, TheReaderHearsWhyItWasClosed) {
  EXPECT_TRUE(reader_.closed().ok());
  writer_.Close(absl::UnavailableError("enough"));
  EXPECT_EQ(reader_.closed(), absl::UnavailableError("enough"));
}

TEST_F(SharedChannelTest, ALongReasonIsCutShort) {
  const std::string reason(2 * SharedChannel::kReasonBytes, 'x');
  writer_.Close(absl::UnavailableError(reason));
  EXPECT_EQ(reader_.closed().message(),
            reason.substr(0, SharedChannel::kReasonBytes - 1));
}

TEST_F(SharedChannelTest, TwoThreadsShareIt) {
  PassOnThreads(writer_, reader_, 2000, [](int i) { return i * 7 % 700; });
}

// A ring for messages that are long enough for a choice: see way_choice.h.
class BothWaysTest : public testing::Test {
 protected:
  static constexpr size_t kRingBytes = 96 << 10;

  // Moves a message through the channel.  Returns how far into the ring the
  // reader met it.
  size_t Pass(const std::string& sent) {
    std::string received;
    size_t end = 0;
    for (bool written = false; received.size() < sent.size();) {
      if (!written) written = writer_.Write(BytesOf(sent));
      const ConstBytes part = reader_.Peek(sent.size()).value();
      if (part.empty()) continue;
      received.append(reinterpret_cast<const char*>(part.data()), part.size());
      end = std::max<size_t>(end, part.data() + part.size() - memory_->ring);
      reader_.Release();
    }
    EXPECT_TRUE(received == sent);
    return end;
  }

  struct Memory {
    SharedChannel channel;
    std::byte ring[kRingBytes];
  };
  const std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  ChannelWriter writer_{&memory_->channel, kRingBytes};
  ChannelReader reader_{&memory_->channel, kRingBytes};
};

TEST_F(BothWaysTest, TheFarWayIsAThirdOfTheRing) {
  constexpr size_t kMessagesInASpan = 12;  // of two rings' length
  const std::string text = Text(2 * kRingBytes / kMessagesInASpan);
  size_t near = 0, far = 0;
  for (size_t i = 0; i < WayChoice::kTrials * kMessagesInASpan; ++i) {
    near = std::max(near, Pass(text));
  }
  for (size_t i = 0; i < WayChoice::kTrials * kMessagesInASpan; ++i) {
    far = std::max(far, Pass(text));
  }
  EXPECT_EQ(near, kRingBytes);
  EXPECT_EQ(far, kRingBytes / 3);
}

TEST_F(BothWaysTest, PassesMessagesOfEverySize) {
  for (size_t i = 0; i < 1000; ++i) Pass(Text(1 + i * 7919 % (3 * kRingBytes)));
}

TEST_F(BothWaysTest, TwoThreadsShareIt) {
  PassOnThreads(writer_, reader_, 2000,
                [](int i) { return i % 3 == 0 ? i : 8000 + i * 31 % 60'000; });
}

}  // namespace
}  // namespace tfring
