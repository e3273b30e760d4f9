// Which way a channel's writer takes, by the times that both take.
#include "tfring_ops/transport/shared_memory/way_choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "tfring_ops/kernels/streaming_copy.h"

namespace tfring {
namespace {

constexpr uint64_t kSpan = 1000;

// Writes messages of a quarter of a span, and receives as much from the other
// rank.
class WayChoiceTest : public testing::Test {
 protected:
  // Writes `spans`, and returns how many of their messages went far.  A message
  // takes `near` or `far` seconds, and a pause of `pauses` follows it.
  uint64_t Write(uint64_t spans, double near, double far, double pauses = 0) {
    uint64_t went_far = 0;
    for (uint64_t i = 0; i < 2 * spans; ++i) {
      const RingWay way = choice_.Begin(sent_, received_, now_);
      went_far += way == RingWay::kFar;
      sent_ += kSpan / 4;
      received_ += kSpan / 4;
      now_ += way == RingWay::kFar ? far : near;
      choice_.End(now_);
      now_ += pauses;
    }
    return went_far / 2;
  }

  WayChoice choice_{kSpan};
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
  double now_ = 0;
};

TEST_F(WayChoiceTest, NearIsKeptUnlessFarIsFaster) {
  for (int period = 0; period < 3; ++period) {
    EXPECT_EQ(Write(WayChoice::kPeriod, 1e-6, 1e-6), WayChoice::kTrials);
  }
}

TEST_F(WayChoiceTest, ItChangesWithTheTimes) {
  constexpr uint64_t kAllButNear = WayChoice::kPeriod - WayChoice::kTrials;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Write(WayChoice::kPeriod, 4e-6, 2e-6), kAllButNear);
    EXPECT_EQ(Write(WayChoice::kPeriod, 2e-6, 2e-6), kAllButNear);
    EXPECT_EQ(Write(WayChoice::kPeriod, 1e-6, 2e-6), WayChoice::kTrials);
  }
}

TEST_F(WayChoiceTest, LongPausesAreNoneOfItsTime) {
  constexpr uint64_t kAllButNear = WayChoice::kPeriod - WayChoice::kTrials;
  EXPECT_EQ(Write(WayChoice::kPeriod, 4e-6, 2e-6, 2 * WayChoice::kLongestPause),
            kAllButNear);
  // What happens between two messages in a row counts for both ways.
  EXPECT_EQ(Write(WayChoice::kPeriod, 1e-6, 2e-6, WayChoice::kLongestPause / 2),
            kAllButNear);
}

TEST_F(WayChoiceTest, ASpanThatLostItsCoreDoesNotCount) {
  Write(WayChoice::kTrials - 1, 1, 1);
  EXPECT_EQ(Write(WayChoice::kPeriod, 1e-6, 2e-6), WayChoice::kTrials);
}

// As those of a broadcast.
TEST_F(WayChoiceTest, ReceivedBytesCountForTheTurnAlone) {
  constexpr uint64_t kAllButNear = WayChoice::kPeriod - WayChoice::kTrials;
  Write(2, 4e-6, 2e-6);
  received_ += 3 * WayChoice::kPeriod * kSpan;
  EXPECT_EQ(Write(WayChoice::kPeriod, 4e-6, 2e-6), kAllButNear);
}

TEST_F(WayChoiceTest, AMessageMayBeLongerThanASpan) {
  uint64_t went_far = 0;
  for (int i = 0; i < 300; ++i) {
    const RingWay way = choice_.Begin(sent_, sent_, now_);
    went_far += way == RingWay::kFar;
    sent_ += 3 * kSpan / 4;  // and as many from the other rank
    now_ += way == RingWay::kFar ? 1e-6 : 2e-6;
    choice_.End(now_);
  }
  EXPECT_GT(went_far, 270u);
}

TEST(StreamingCopyTest, CopiesTheBytesAndNoOthers) {
  for (size_t bytes = 0; bytes < 200; ++bytes) {
    for (const size_t offset : {0, 1, 13}) {
      std::vector<unsigned char> from(bytes + offset + 1);
      for (size_t i = 0; i < from.size(); ++i) from[i] = 1 + i % 251;
      alignas(16) unsigned char to[256] = {};
      StreamingCopy(to, from.data() + offset, bytes);
      for (size_t i = 0; i < sizeof(to); ++i) {
        ASSERT_EQ(to[i], i < bytes ? from[i + offset] : 0) << bytes << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tfring
