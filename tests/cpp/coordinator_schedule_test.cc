// Which steps the coordinator makes a cached schedule.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/negotiation_fixture.h"
#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

class CachingTest : public NegotiationTest {
 protected:
  // The names of the cached schedule in the next response list.
  std::vector<std::string> TakeSchedule() {
    std::vector<std::string> names;
    for (const auto& item : coordinator_.TakeResponses().schedule) {
      names.push_back(item.name);
    }
    return names;
  }
  // Each bucket by itself.
  std::vector<std::string> ScheduleAfterSteps(int steps) {
    std::vector<std::string> schedule;
    for (int step = 0; step < steps; ++step) {
      for (const char* name : {"a", "b"}) {
        EXPECT_TRUE(schedule.empty());
        AddOnAllRanks(MakeRequest(name));
        schedule = TakeSchedule();
      }
    }
    return schedule;
  }
};

TEST_F(CachingTest, AStepThatHasRepeatedIsCached) {
  EXPECT_EQ(ScheduleAfterSteps(2), (std::vector<std::string>{"a", "b"}));
}

TEST_F(CachingTest, AScheduleIsSentOnce) {
  ScheduleAfterSteps(2);
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  EXPECT_TRUE(TakeSchedule().empty());
}

TEST_F(CachingTest, ItsBeginningForgetsRequestsThatWait) {
  ScheduleAfterSteps(1);
  AddOnAllRanks(MakeRequest("a"));
  TakeSchedule();
  for (const int rank : {0, 1}) Add(rank, MakeRequest("a"));
  AddOnAllRanks(MakeRequest("b"));
  EXPECT_EQ(TakeSchedule(), (std::vector<std::string>{"a", "b"}));
  Add(2, MakeRequest("a"));
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  for (const int rank : {0, 1}) Add(rank, MakeRequest("a"));
  EXPECT_EQ(TakeBuckets(), (Names{{"a"}}));
}

TEST_F(CachingTest, NoneBeginsWhileAnotherRequestWaits) {
  Add(1, MakeRequest("late"));
  EXPECT_TRUE(ScheduleAfterSteps(9).empty());
  Pass(30);
  EXPECT_EQ(coordinator_.TakeResponses().reports.size(), 1u);
}

TEST_F(CachingTest, NoneBeginsWhileACachedNameWaitsWithAnotherShape) {
  ScheduleAfterSteps(1);
  AddOnAllRanks(MakeRequest("a"));
  TakeSchedule();
  Add(1, MakeRequest("a", {5}));
  AddOnAllRanks(MakeRequest("b"));
  EXPECT_TRUE(TakeSchedule().empty());
}

TEST_F(CachingTest, NoneBeginsWhileARankHasJoined) {
  ScheduleAfterSteps(1);
  AddOnAllRanks(MakeRequest("a"));
  TakeSchedule();
  Add(2, MakeRequest("b"));
  Join(2);
  for (const int rank : {0, 1}) Add(rank, MakeRequest("b"));
  EXPECT_TRUE(TakeSchedule().empty());
}

TEST_F(CachingTest, ARequestWithoutANameIsInNone) {
  ScheduleAfterSteps(1);
  CollectiveRequest nameless = MakeRequest("allreduce 1");
  nameless.is_nameless = true;
  for (int i = 0; i < 3; ++i) {
    AddOnAllRanks(nameless);
    EXPECT_TRUE(TakeSchedule().empty());
  }
  EXPECT_EQ(ScheduleAfterSteps(2), (std::vector<std::string>{"a", "b"}));
}

// Which of them do is a matter of time.
TEST_F(CachingTest, RequestsThatSharedAMessageAreCached) {
  for (const size_t items : {0, 2}) {
    for (const char* name : {"a", "b"}) AddOnAllRanks(MakeRequest(name));
    const ResponseList response_list = coordinator_.TakeResponses();
    EXPECT_EQ(response_list.responses.size(), 1u);
    EXPECT_EQ(response_list.schedule.size(), items);
  }
}

TEST_F(CachingTest, KindsWithSizesAreCachedWhateverTheSizes) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kAlltoall}) {
    Coordinator coordinator(MakeOptions(), Members(kSize));
    std::vector<CollectiveRequest> schedule;
    for (int step = 0; step < 2; ++step) {
      for (int rank = 0; rank < kSize; ++rank) {
        const int64_t rows = rank + step;
        CollectiveRequest request = MakeRequest("a", {rows, 2}, kind);
        if (kind == CollectiveKind::kAlltoall) request.splits = {rows, 0, 0};
        coordinator.Add(rank, request, now_);
      }
      schedule = coordinator.TakeResponses().schedule;
    }
    EXPECT_EQ(schedule.size(), 1u) << Name(kind);
  }
}

TEST_F(CachingTest, JoinsAreNotCached) {
  for (int step = 0; step < 5; ++step) {
    AddOnAllRanks(MakeRequest("join", {}, CollectiveKind::kJoin));
    EXPECT_TRUE(TakeSchedule().empty());
  }
}

TEST_F(CachingTest, AFailureIsNoRepetition) {
  ScheduleAfterSteps(1);
  AddOnAllRanks(MakeRequest("a"));
  for (int rank = 0; rank < kSize; ++rank) {
    Add(rank, MakeRequest("c", {rank}));
  }
  EXPECT_EQ(coordinator_.TakeResponses().errors.size(), 1u);
  AddOnAllRanks(MakeRequest("b"));
  EXPECT_TRUE(TakeSchedule().empty());
}

TEST_F(CachingTest, NoneForOneRank) {
  for (const int size : {1, 2, 100}) {
    Coordinator coordinator(MakeOptions(), Members(size));
    size_t items = 0;
    for (int step = 0; step < 2; ++step) {
      for (int rank = 0; rank < size; ++rank) {
        coordinator.Add(rank, MakeRequest("a"), now_);
      }
      items = coordinator.TakeResponses().schedule.size();
    }
    EXPECT_EQ(items, size > 1 ? 1u : 0u) << size;
  }
}

}  // namespace
}  // namespace tfring
