// Decisions of the coordinator, and the ranks that receive them.
#include "tfring_ops/engine/negotiation/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/cpp/negotiation_fixture.h"
#include "tests/cpp/status_matchers.h"

namespace tfring {
namespace {

class CoordinatorTest : public NegotiationTest {
 protected:
  // The one failure of the next response list, which has nothing else.
  ErrorResponse TakeFailure() {
    const ResponseList response_list = coordinator_.TakeResponses();
    EXPECT_TRUE(response_list.responses.empty());
    EXPECT_EQ(response_list.errors.size(), 1u);
    return response_list.errors.empty() ? ErrorResponse()
                                        : response_list.errors[0];
  }
};

TEST_F(CoordinatorTest, ARequestRunsOnceEveryRankHasSubmittedIt) {
  Add(2, MakeRequest("a"));
  Add(0, MakeRequest("a"));
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Add(1, MakeRequest("a"));
  EXPECT_EQ(TakeBuckets(), (Names{{"a"}}));
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
}

TEST_F(CoordinatorTest, TheOrderIsThatOfTheLastRankToCome) {
  for (const char* name : {"a", "b", "c"}) Add(0, MakeRequest(name, {20}));
  for (const char* name : {"b", "c", "a"}) Add(2, MakeRequest(name, {20}));
  for (const char* name : {"c", "a", "b"}) Add(1, MakeRequest(name, {20}));
  EXPECT_EQ(TakeBuckets(), (Names{{"c"}, {"a"}, {"b"}}));
}

TEST_F(CoordinatorTest, SmallRequestsShareABucketUpToTheThreshold) {
  // 40, 40, 20; 4 of another dtype; 40, 40; 400 bytes; 40.
  AddOnAllRanks(MakeRequest("a", {10}));
  AddOnAllRanks(MakeRequest("b", {10}));
  AddOnAllRanks(MakeRequest("c", {5}));
  CollectiveRequest other = MakeRequest("d", {4});
  other.dtype = DataType::kInt8;
  AddOnAllRanks(other);
  AddOnAllRanks(MakeRequest("e", {10}));
  AddOnAllRanks(MakeRequest("f", {10}));
  AddOnAllRanks(MakeRequest("g", {100}));
  AddOnAllRanks(MakeRequest("h", {10}));
  EXPECT_EQ(TakeBuckets(),
            (Names{{"a", "b", "c"}, {"d"}, {"e", "f"}, {"g"}, {"h"}}));
}

TEST_F(CoordinatorTest, ADeterministicBucketHasOneRequest) {
  Options options = MakeOptions();
  options.deterministic = true;
  Coordinator coordinator(options, Members(kSize));
  for (const char* name : {"a", "b"}) {
    for (int rank = 0; rank < kSize; ++rank) {
      coordinator.Add(rank, MakeRequest(name, {10}), now_);
    }
  }
  EXPECT_EQ(coordinator.TakeResponses().responses.size(), 2u);
}

TEST_F(CoordinatorTest, AnAllgatherTellsEveryRanksFirstDimension) {
  for (int rank = 0; rank < kSize; ++rank) {
    CollectiveRequest request =
        MakeRequest("a", {10 * rank, 2}, CollectiveKind::kAllgather);
    request.tensors.push_back({"b", {rank + 1}});
    Add(rank, request);
  }
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].sizes,
            (std::vector<std::vector<int64_t>>{{0, 1}, {10, 2}, {20, 3}}));
}

TEST_F(CoordinatorTest, AnAllgatherTellsTheSizesOfRanksThatSendTheSame) {
  AddOnAllRanks(MakeRequest("a", {7, 2}, CollectiveKind::kAllgather));
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].sizes,
            (std::vector<std::vector<int64_t>>{{7}, {7}, {7}}));
}

TEST_F(CoordinatorTest, AnAlltoallTellsEveryRanksSplits) {
  for (const int rank : {1, 2, 0}) {
    CollectiveRequest request =
        MakeRequest("a", {rank + 1, 2}, CollectiveKind::kAlltoall);
    request.splits = {rank, 1, 0};
    Add(rank, request);
  }
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(
      response_list.responses[0].sizes,
      (std::vector<std::vector<int64_t>>{{0, 1, 0}, {1, 1, 0}, {2, 1, 0}}));
}

TEST_F(CoordinatorTest, ADifferenceFailsOnEveryRank) {
  Add(1, MakeRequest("dense/kernel", {784, 128}));
  Add(0, MakeRequest("dense/kernel", {784, 128}));
  Add(2, MakeRequest("dense/kernel", {784, 64}));
  const ErrorResponse failure = TakeFailure();
  EXPECT_EQ(failure.ranks, (Ranks{0, 1, 2}));
  EXPECT_EQ(failure.name, "dense/kernel");
  EXPECT_EQ(failure.status,
            absl::FailedPreconditionError(
                "allreduce of 'dense/kernel': shapes differ. Rank 1 sent "
                "float32 (784, 128); rank 2 sent float32 (784, 64). Run the "
                "same model and the same calls on every rank."));
  AddOnAllRanks(MakeRequest("dense/kernel"));
  EXPECT_EQ(TakeBuckets(), (Names{{"dense/kernel"}}));
}

TEST_F(CoordinatorTest, ADifferenceNamesAllRanksThatDiffer) {
  Add(0, MakeRequest("a", {1}));
  Add(1, MakeRequest("a", {2}));
  Add(2, MakeRequest("a", {3}));
  EXPECT_THAT(TakeFailure().status,
              HasMessage("(ranks 1 and 2 differ from rank 0)"));
}

TEST_F(CoordinatorTest, RanksThatDifferInTheSameWayAreAllNamed) {
  Add(0, MakeRequest("a", {1}));
  for (const int rank : {1, 2}) Add(rank, MakeRequest("a", {2}));
  EXPECT_THAT(TakeFailure().status,
              HasMessage("(ranks 1 and 2 differ from rank 0)"));
}

// The negotiator adds ranks together that have sent the same bytes.
TEST_F(CoordinatorTest, RanksThatAreAddedTogetherAllCount) {
  KnownRequest known{MakeRequest("a")};
  for (int step = 0; step < 2; ++step) {
    coordinator_.Add({1, 2}, known, now_);
    EXPECT_TRUE(coordinator_.TakeResponses().empty());
    Add(0, MakeRequest("a"));
    EXPECT_EQ(TakeBuckets(), (Names{{"a"}}));
  }
}

TEST_F(CoordinatorTest, RanksThatAreAddedTogetherAndDifferAreAllNamed) {
  Add(0, MakeRequest("a", {1}));
  KnownRequest known{MakeRequest("a", {2})};
  coordinator_.Add({1, 2}, known, now_);
  EXPECT_THAT(TakeFailure().status,
              HasMessage("(ranks 1 and 2 differ from rank 0)"));
}

TEST_F(CoordinatorTest, OfRanksThatAreAddedTogetherThoseThatHaveJoinedFail) {
  Join(2);
  KnownRequest known{MakeRequest("a")};
  coordinator_.Add({1, 2}, known, now_);
  EXPECT_EQ(TakeFailure().ranks, Ranks{2});
  Add(0, MakeRequest("a"));
  EXPECT_EQ(TakeBuckets(), (Names{{"a"}}));
}

TEST_F(CoordinatorTest, AStallIsReportedOnceAndThenFails) {
  Add(0, MakeRequest("a"));
  Pass(10);
  Add(2, MakeRequest("a"));
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Pass(20);
  const ResponseList response_list = coordinator_.TakeResponses();
  EXPECT_TRUE(response_list.errors.empty());
  ASSERT_EQ(response_list.reports.size(), 1u);
  EXPECT_EQ(response_list.reports[0].ranks, (Ranks{0, 2}));
  EXPECT_THAT(response_list.reports[0].text,
              testing::HasSubstr("allreduce of 'a' has waited 30 s for rank 1; "
                                 "ranks 0 and 2 asked for it"));
  Pass(500);
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Pass(70);
  const ErrorResponse failure = TakeFailure();
  EXPECT_EQ(failure.ranks, (Ranks{0, 2}));
  EXPECT_EQ(failure.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failure.status, HasMessage("'a' has waited 600 s for rank 1"));
}

TEST(CoordinatorOptionsTest, ARankThatHangsEndsAJobThatReplacesIt) {
  Options options;
  options.replaces_ranks = true;
  Coordinator coordinator(options, Members(3));
  Coordinator::Time now;
  coordinator.Add(0, MakeRequest("a"), now);
  coordinator.Add(2, MakeRequest("a"), now);
  EXPECT_TRUE(coordinator.CheckStalls(now + std::chrono::seconds(599)).ok());
  const absl::Status status =
      coordinator.CheckStalls(now + std::chrono::seconds(600));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status, HasMessage("'a' has waited 600 s for rank 1"));
}

TEST(CoordinatorOptionsTest, RanksThatWaitForOneAnotherAreNotReplaced) {
  Options options;
  options.replaces_ranks = true;
  Coordinator coordinator(options, Members(2));
  Coordinator::Time now;
  coordinator.Add(0, MakeRequest("a"), now);
  coordinator.Add(1, MakeRequest("b"), now);
  EXPECT_TRUE(coordinator.CheckStalls(now + std::chrono::seconds(600)).ok());
  EXPECT_EQ(coordinator.TakeResponses().errors.size(), 2u);
}

TEST_F(CoordinatorTest, AStallOfSilentRanksAloneIsNoNews) {
  Add(0, MakeRequest("a"));
  now_ += std::chrono::seconds(30);
  EXPECT_TRUE(coordinator_.CheckStalls(now_, /*silent=*/{1, 2}).ok());
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Add(0, MakeRequest("b"));
  now_ += std::chrono::seconds(30);
  EXPECT_TRUE(coordinator_.CheckStalls(now_, /*silent=*/{2}).ok());
  EXPECT_EQ(coordinator_.TakeResponses().reports.size(), 1u);
}

TEST_F(CoordinatorTest, RanksThatWaitForOneAnotherHearOfItWithinSeconds) {
  Add(0, MakeRequest("a"));
  Add(2, MakeRequest("a"));
  Add(1, MakeRequest("b", {4}, CollectiveKind::kBarrier));
  Pass(4);
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Pass(2);
  ResponseList response_list = coordinator_.TakeResponses();
  EXPECT_TRUE(response_list.errors.empty());
  ASSERT_EQ(response_list.reports.size(), 1u);
  EXPECT_EQ(response_list.reports[0].ranks, (Ranks{0, 1, 2}));
  EXPECT_THAT(response_list.reports[0].text,
              testing::StartsWith(
                  "ranks wait for one another: ranks 0 and 2 in allreduce of "
                  "'a' for rank 1; rank 1 in barrier of 'b' "));
  Pass(20);
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Pass(574);
  response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.errors.size(), 2u);
  for (const ErrorResponse& failure : response_list.errors) {
    EXPECT_THAT(failure.status,
                HasMessage(failure.name == "a"
                               ? ", and rank 1 waits in barrier of 'b'"
                               : ", and rank 0 waits in allreduce of 'a'"));
  }
}

// It may have been the order of a step's calls.
TEST_F(CoordinatorTest, RanksThatAskForMoreDoNotWaitForOneAnother) {
  for (int second = 0; second < 12; ++second) {
    Add(0, MakeRequest("a" + std::to_string(second)));
    Add(1, MakeRequest("b" + std::to_string(second)));
    Pass(1);
  }
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
}

TEST_F(CoordinatorTest, ALateRankGetsTheFailureThatItMissed) {
  Add(0, MakeRequest("a"));
  Pass(600);
  const absl::Status status = TakeFailure().status;
  // The remaining ranks have continued, and two have even used the name again.
  Add(0, MakeRequest("a"));
  Add(1, MakeRequest("a"));
  ErrorResponse failure = TakeFailure();
  EXPECT_EQ(failure.ranks, Ranks{1});
  EXPECT_EQ(failure.status, status);
  Add(1, MakeRequest("a"));
  Add(2, MakeRequest("a"));
  failure = TakeFailure();
  EXPECT_EQ(failure.ranks, Ranks{2});
  EXPECT_EQ(failure.status, status);
  Add(2, MakeRequest("a"));
  EXPECT_EQ(TakeBuckets(), (Names{{"a"}}));
}

TEST_F(CoordinatorTest, ARankThatMissedTwoFailuresGetsTheOlderFirst) {
  for (const int64_t length : {4, 5}) {
    Add(0, MakeRequest("a", {length}));
    Add(2, MakeRequest("a", {length},
                       length == 4 ? CollectiveKind::kAllreduce
                                   : CollectiveKind::kBroadcast));
    Pass(length == 4 ? 600 : 700);
  }
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.errors.size(), 2u);
  for (const ErrorResponse& missed : response_list.errors) {
    Add(1, MakeRequest("a"));
    EXPECT_EQ(TakeFailure().status, missed.status);
  }
  EXPECT_NE(response_list.errors[0].status, response_list.errors[1].status);
  AddOnAllRanks(MakeRequest("a"));
  EXPECT_EQ(TakeBuckets(), (Names{{"a"}}));
}

TEST_F(CoordinatorTest, ADepartureIsTheLastWord) {
  Add(0, MakeRequest("waiting"));
  AddOnAllRanks(MakeRequest("agreed"));
  coordinator_.Depart(2);
  const ResponseList response_list = coordinator_.TakeResponses();
  // A response from before the shutdown still runs.
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.shutdown.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(response_list.shutdown, HasMessage("rank 2 has shut down"));
  coordinator_.Depart(0);
  AddOnAllRanks(MakeRequest("late"));
  Pass(1000);
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
}

TEST(CoordinatorOptionsTest, ZeroSecondsIsNever) {
  Options options;
  options.stall_check_seconds = options.stall_shutdown_seconds = 0;
  Coordinator coordinator(options, Members(2));
  Coordinator::Time now;
  coordinator.Add(0, MakeRequest("a"), now);
  EXPECT_TRUE(coordinator.CheckStalls(now + std::chrono::hours(1000)).ok());
  EXPECT_TRUE(coordinator.TakeResponses().empty());
}

}  // namespace
}  // namespace tfring
