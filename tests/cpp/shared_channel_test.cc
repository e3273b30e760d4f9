// A channel through a ring smaller than its messages.
#include "tfring_ops/transport/shared_memory/shared_channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tfring_ops/base/backoff.h"

namespace tfring {
namespace {

class SharedChannelTest : public testing::Test {
 protected:
  static constexpr size_t kRingBytes = 4 * kPartAlignment;

  static ConstBytes BytesOf(const std::string& text) {
    return ConstBytes(reinterpret_cast<const std::byte*>(text.data()),
                      text.size());
  }
  static Bytes BytesOf(std::string& text) {
    return Bytes(reinterpret_cast<std::byte*>(text.data()), text.size());
  }
  // Text with a period of 251 characters, so that a misplaced part is detected.
  static std::string Text(size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i) {
      text.push_back(static_cast<char>(i % 251));
    }
    return text;
  }

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
  constexpr int kMessages = 2000;
  const auto text_of = [](int i) { return Text(i * 7 % 700); };
  OnThreads(2, [&](int rank) {
    for (int i = 0; i < kMessages; ++i) {
      const std::string sent = text_of(i);
      std::string received(sent.size(), '?');
      for (Backoff backoff;; backoff.Pause()) {
        if (rank == 0 ? writer_.Write(BytesOf(sent))
                      : reader_.Read(BytesOf(received)).value()) {
          break;
        }
      }
      if (rank == 1) {
        ASSERT_TRUE(received == sent) << i;
      }
    }
  });
}

}  // namespace
}  // namespace tfring
