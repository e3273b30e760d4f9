// Executions of a chain: a collective of one execution never matches a
// collective of the next.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/negotiation_fixture.h"

namespace tfring {
namespace {

using testing::HasSubstr;

// ---- The negotiation ----

class ChainNegotiationTest : public NegotiationTest {
 protected:
  void Add(int rank, int64_t execution, const std::string& chain = "first") {
    CollectiveRequest request = MakeRequest("a");
    request.chain = chain;
    request.execution = execution;
    NegotiationTest::Add(rank, std::move(request));
  }
  // The failures of a response list that has nothing else.
  std::vector<Ranks> TakeFailures() {
    const ResponseList response_list = coordinator_.TakeResponses();
    EXPECT_TRUE(response_list.responses.empty());
    std::vector<Ranks> failures;
    for (const ErrorResponse& error : response_list.errors) {
      failures.push_back(error.ranks);
      last_message_ = std::string(error.status.message());
    }
    return failures;
  }
  void ExpectRuns() {
    const ResponseList response_list = coordinator_.TakeResponses();
    EXPECT_TRUE(response_list.errors.empty());
    EXPECT_EQ(response_list.responses.size(), 1u);
  }

  std::string last_message_;
};

TEST_F(ChainNegotiationTest, WhoIsBehindGetsAnErrorAndMayCatchUp) {
  Add(0, 7);
  Add(1, 8);
  EXPECT_EQ(TakeFailures(), std::vector<Ranks>({{0}}));
  EXPECT_EQ(last_message_,
            "allreduce of 'a': rank 0 asked for it in execution 7 of the step "
            "that begins with 'first', and rank 1 in execution 8. So rank 1 "
            "left the earlier one half way, by an error that the script has "
            "caught there. Let it end the process, or go on after errors on "
            "every rank.");
  Add(2, 7);
  EXPECT_EQ(TakeFailures(), std::vector<Ranks>({{2}}));
  EXPECT_THAT(last_message_, HasSubstr("rank 2 asked for it in execution 7"));
  Add(0, 8);
  Add(2, 8);
  ExpectRuns();
}

TEST_F(ChainNegotiationTest, AllThatWaitTogetherFailTogether) {
  Add(0, 1);
  Add(2, 1);
  Add(1, 3);
  EXPECT_EQ(TakeFailures(), std::vector<Ranks>({{0, 2}}));
  Add(0, 2);
  EXPECT_EQ(TakeFailures(), std::vector<Ranks>({{0}}));
  Add(0, 3);
  Add(2, 3);
  ExpectRuns();
}

TEST_F(ChainNegotiationTest, OtherChainsAndWhatIsNotCountedAreNotCompared) {
  Add(0, 1);
  Add(1, 2, "other");
  Add(2, 0);
  ExpectRuns();
}

TEST_F(ChainNegotiationTest, WhoHasLeftAStalledExecutionDoesNotGetItsFailure) {
  Add(0, 1);
  Add(1, 1);
  Pass(601);
  EXPECT_EQ(TakeFailures(), std::vector<Ranks>({{0, 1}}));
  Add(2, 2);
  EXPECT_TRUE(TakeFailures().empty());
  Add(0, 2);
  Add(1, 2);
  ExpectRuns();
}

TEST_F(ChainNegotiationTest, WhoComesToAStalledExecutionLaterGetsItsFailure) {
  Add(0, 2);
  Add(1, 2);
  Pass(601);
  TakeFailures();
  for (const int64_t execution : {1, 2}) {
    Add(2, execution);
    EXPECT_EQ(TakeFailures(), std::vector<Ranks>({{2}}));
  }
  for (int rank = 0; rank < kSize; ++rank) Add(rank, 3);
  ExpectRuns();
}

// ---- A job ----

constexpr int kSize = 3;
const char* const kNames[] = {"a", "b", "c"};

class ChainTest : public testing::Test {
 protected:
  // One rank's part of a step: the first `count` of the names, each of
  // `value`s.
  Entries Start(int rank, float value, size_t count = 3) {
    auto chain = std::make_shared<Chain>();
    Entries entries;
    for (size_t i = 0; i < count; ++i) {
      entries.push_back(std::make_unique<FloatEntry>(
          kNames[i], std::vector<float>(100, value)));
      entries.back()->callbacks.chain = chain;
      entries.back()->SubmitTo(job_.engine(rank));
    }
    return entries;
  }

  static void ExpectAll(const Entries& entries, float value) {
    for (const auto& entry : entries) {
      const absl::Status status = entry->outcome.Wait();
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(entry->result(), std::vector<float>(100, value));
    }
  }

  // On all ranks.
  void ExpectStep(float value) {
    std::vector<Entries> of_rank;
    for (int rank = 0; rank < kSize; ++rank) {
      of_rank.push_back(Start(rank, value));
    }
    for (const Entries& entries : of_rank) ExpectAll(entries, kSize * value);
  }

  Job job_{kSize};
};

TEST_F(ChainTest, TheNextStepOfOneRankDoesNotMeetTheLastOneOfOthers) {
  // The steps before, after which a cached schedule may hold.
  for (const int steps : {0, 1, 10}) {
    SCOPED_TRACE(steps);
    for (int step = 0; step < steps; ++step) ExpectStep(1);
    const Entries left = Start(1, 10, /*count=*/1);
    const Entries half[] = {Start(0, 10), Start(2, 10)};
    ExpectAll(left, 30);
    const Entries ahead = Start(1, 100);
    for (const Entries& entries : half) {
      EXPECT_TRUE(entries[0]->outcome.Wait().ok());
      for (const int i : {1, 2}) {
        ExpectError(*entries[i], absl::StatusCode::kFailedPrecondition,
                    "rank 1 in execution");
      }
    }
    // Ranks 0 and 2 catch their errors too, so all ranks continue together.
    const Entries caught_up[] = {Start(0, 100), Start(2, 100)};
    ExpectAll(ahead, 300);
    for (const Entries& entries : caught_up) ExpectAll(entries, 300);
    ExpectStep(2);
  }
}

TEST_F(ChainTest, AJoinedRankCountsAsTheOthersDo) {
  const Entries joins = MakeJoins(kSize);
  ExpectStep(1);
  joins[1]->SubmitTo(job_.engine(1));
  for (int step = 0; step < 3; ++step) {
    const Entries of_two[] = {Start(0, 5), Start(2, 5)};
    for (const Entries& entries : of_two) ExpectAll(entries, 10);
  }
  job_.Submit(joins, {0, 2});
  ExpectOk(joins);
  ExpectStep(2);
}

TEST_F(ChainTest, AnErrorOnAllRanksCountsOnAll) {
  std::vector<Entries> of_rank;
  for (int rank = 0; rank < kSize; ++rank) {
    auto chain = std::make_shared<Chain>();
    Entries& entries = of_rank.emplace_back();
    for (const char* name : kNames) {
      const size_t count = name == kNames[1] && rank == 2 ? 99 : 100;
      entries.push_back(
          std::make_unique<FloatEntry>(name, std::vector<float>(count, 1)));
      entries.back()->callbacks.chain = chain;
      entries.back()->SubmitTo(job_.engine(rank));
    }
  }
  for (const Entries& entries : of_rank) {
    EXPECT_TRUE(entries[0]->outcome.Wait().ok());
    EXPECT_FALSE(entries[1]->outcome.Wait().ok());
    EXPECT_TRUE(entries[2]->outcome.Wait().ok());
  }
  for (int step = 0; step < 5; ++step) ExpectStep(1);
}

}  // namespace
}  // namespace tfring
