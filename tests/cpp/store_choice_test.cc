// Which stores a channel's writer uses, by the times that they take.
#include "tfring_ops/transport/shared_memory/store_choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "tfring_ops/kernels/streaming_copy.h"

namespace tfring {
namespace {

constexpr int kTries = 2 * StoreChoice::kTrials;

// Writes `parts`, and returns how many of them were streamed.
int Write(StoreChoice& choice, int parts, double plain, double streaming) {
  int streamed = 0;
  for (int i = 0; i < parts; ++i) {
    streamed += choice.streams();
    choice.Written(choice.streams() ? streaming : plain);
  }
  return streamed;
}

TEST(StoreChoiceTest, PlainStoresAreKeptUnlessStreamingIsMuchFaster) {
  StoreChoice choice;
  for (int period = 0; period < 3; ++period) {
    EXPECT_EQ(Write(choice, StoreChoice::kPeriod, 3.9, 1),
              StoreChoice::kTrials);
  }
}

TEST(StoreChoiceTest, ItChangesWithTheTimes) {
  StoreChoice choice;
  EXPECT_EQ(Write(choice, StoreChoice::kPeriod, 9, 1),
            StoreChoice::kPeriod - StoreChoice::kTrials);
  EXPECT_EQ(Write(choice, StoreChoice::kPeriod, 1, 1), StoreChoice::kTrials);
  EXPECT_EQ(Write(choice, StoreChoice::kPeriod, 9, 1),
            StoreChoice::kPeriod - StoreChoice::kTrials);
}

TEST(StoreChoiceTest, APartThatLostItsCoreDoesNotCount) {
  StoreChoice choice;
  for (int i = 0; i < kTries; ++i) choice.Written(i % 2 == 0 ? 1000 : 1);
  EXPECT_FALSE(choice.streams());
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
