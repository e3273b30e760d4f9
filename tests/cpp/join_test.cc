// Joined ranks, and the collectives of the remaining ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/negotiation_fixture.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/engine/execution/neutral_contribution.h"
#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

using testing::HasSubstr;

// ---- The negotiation ----

class JoinNegotiationTest : public NegotiationTest {
 protected:
  void Add(int rank, const std::string& name) {
    NegotiationTest::Add(rank, MakeRequest(name));
  }
};

TEST_F(JoinNegotiationTest, TheResponseHasTheRequestsForJoinedRanks) {
  Join(1);
  Add(0, "a");
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
  Add(2, "a");
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_EQ(response_list.responses[0].contributors, 2);
  ASSERT_EQ(response_list.responses[0].requests.size(), 1u);
  EXPECT_EQ(response_list.responses[0].requests[0].name, "a");
}

TEST_F(JoinNegotiationTest, WithoutAJoinTheResponseHasNothingMore) {
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < kSize; ++rank) Add(rank, "a");
    const ResponseList response_list = coordinator_.TakeResponses();
    ASSERT_EQ(response_list.responses.size(), 1u);
    EXPECT_TRUE(response_list.responses[0].requests.empty());
    // The same must hold once more after a join.
    for (int rank = 0; rank < kSize; ++rank) Join(rank);
    coordinator_.TakeResponses();
  }
}

TEST_F(JoinNegotiationTest, AJoinCompletesWhatWaitedForItInTheOrderOfArrival) {
  for (const int rank : {0, 1}) {
    for (const char* name : {"c", "a", "b"}) Add(rank, name);
  }
  Add(2, "d");  // No other rank has asked for it yet.
  Join(2);
  ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 1u);  // fused
  EXPECT_EQ(response_list.responses[0].names,
            (std::vector<std::string>{"c", "a", "b"}));
  // Rank 2 asked for it before it joined, and so contributes.
  Add(0, "d");
  Add(1, "d");
  response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 1u);
  EXPECT_TRUE(response_list.responses[0].requests.empty());
}

TEST_F(JoinNegotiationTest, OtherNumbersOfContributorsAreNotFused) {
  for (const char* name : {"a", "b"}) Add(0, name);
  Add(2, "a");
  Join(2);
  for (const char* name : {"a", "b"}) Add(1, name);
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.responses.size(), 2u);
  EXPECT_TRUE(response_list.responses[0].requests.empty());
  EXPECT_EQ(response_list.responses[1].contributors, 2);
}

TEST_F(JoinNegotiationTest, EndsWithTheLastRankAndMayBeginAgain) {
  for (const int last : {1, 2}) {
    for (const int rank : RanksBut(last, kSize)) Join(rank);
    EXPECT_TRUE(coordinator_.TakeResponses().empty());
    Join(last);
    const ResponseList response_list = coordinator_.TakeResponses();
    ASSERT_EQ(response_list.responses.size(), 1u);
    EXPECT_EQ(response_list.responses[0].names,
              std::vector<std::string>{"join"});
    EXPECT_EQ(response_list.responses[0].last_joined, last);
    Add(0, "a");
    EXPECT_TRUE(coordinator_.TakeResponses().empty());
    for (const int rank : {1, 2}) Add(rank, "a");
    EXPECT_EQ(coordinator_.TakeResponses().responses.size(), 1u);
  }
}

TEST_F(JoinNegotiationTest, ARankThatHasJoinedAsksInVain) {
  Join(2);
  Add(2, "a");
  const ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_EQ(response_list.errors[0].ranks, Ranks{2});
  EXPECT_EQ(response_list.errors[0].status.code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(response_list.errors[0].status,
              HasMessage("allreduce of 'a': rank 2 has joined"));
}

TEST_F(JoinNegotiationTest, AStallNamesOnlyTheRanksThatAreWaitedFor) {
  Join(1);
  Add(0, "a");
  Pass(30);
  ResponseList response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.reports.size(), 1u);
  EXPECT_THAT(response_list.reports[0].text,
              HasSubstr("s for rank 2; rank 0 asked for it (rank 1 joined and "
                        "is not waited for)"));
  Pass(600);
  response_list = coordinator_.TakeResponses();
  ASSERT_EQ(response_list.errors.size(), 1u);
  EXPECT_EQ(response_list.errors[0].ranks, Ranks{0});
  // Rank 2 joins instead of coming to "a", which from then on is a new one.
  Join(2);
  Join(0);
  coordinator_.TakeResponses();
  for (int rank = 0; rank < kSize; ++rank) Add(rank, "a");
  response_list = coordinator_.TakeResponses();
  EXPECT_TRUE(response_list.errors.empty());
  EXPECT_EQ(response_list.responses.size(), 1u);
}

TEST_F(JoinNegotiationTest, AJoinAloneNeverStalls) {
  Join(0);
  Pass(100000);
  EXPECT_TRUE(coordinator_.TakeResponses().empty());
}

// ---- What a rank that has joined puts in ----

TEST(NeutralContributionTest, ChangesNoReduction) {
  constexpr int64_t kCount = 70001;  // more than is uploaded at once
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      CollectiveRequest request = MakeRequest("a");
      request.dtype = dtype;
      request.op = op;
      request.tensors[0].dims = {kCount};
      NeutralContribution contribution(request);
      ASSERT_EQ(contribution.Allocate(CpuKernels()), absl::OkStatus());
      const Elements values = AllreduceInput(dtype, op, kCount, 0);
      Elements result = values;
      CpuKernels().Reduce(result.data(), values.data(),
                          contribution.entry().buffers[0].input, kCount, dtype,
                          op);
      EXPECT_TRUE(result == values) << Name(op) << " of " << Name(dtype);
    }
  }
}

TEST(NeutralContributionTest, IsNotScaled) {
  CollectiveRequest request = MakeRequest("a");
  request.op = ReduceOp::kMin;
  request.prescale_factor = -1;
  NeutralContribution contribution(request);
  ASSERT_EQ(contribution.Allocate(CpuKernels()), absl::OkStatus());
  // The ranks choose the algorithm by the request, so it keeps the factor.
  EXPECT_EQ(contribution.entry().request.prescale_factor, -1);
  EXPECT_EQ(contribution.entry().input_factor(), 1);
  EXPECT_EQ(*static_cast<const float*>(contribution.entry().buffers[0].input),
            std::numeric_limits<float>::infinity());
}

// ---- A job ----
// What the others may do meanwhile is drawn in property_test.cc.

constexpr int kSize = 4;

class JoinTest : public testing::TestWithParam<int> {
 protected:
  // The rank that has joined; rank 0 is the coordinator, so it is one case.
  static int joined() { return GetParam(); }
  void Join(int rank) { joins_[rank]->SubmitTo(job_.engine(rank)); }
  // Joined ranks continue when all ranks have joined.
  void JoinOthers() {
    SubmitOthers(joins_);
    ExpectOk(joins_);
  }
  // Every rank but joined().
  static std::vector<int> others() { return RanksBut(joined(), kSize); }
  void SubmitOthers(const Entries& entries) { job_.Submit(entries, others()); }
  template <typename Check>
  void OnOthers(const Entries& entries, const Check& check) {
    for (const int rank : others()) {
      const absl::Status status = entries[rank]->outcome.Wait();
      check(*entries[rank], status);
    }
  }

  const Entries joins_ =
      MakeJoins(kSize);  // outlive the job, which may end without them
  Job job_{kSize};
};
INSTANTIATE_TEST_SUITE_P(JoinedRank, JoinTest, testing::Values(0, 2));

TEST_P(JoinTest, TheLastOneMayRunAloneAndAllHearWhoItWas) {
  job_.Submit(joins_, RanksBut(1, kSize));
  FloatEntry alone("alone", {5});
  alone.request.op = ReduceOp::kAverage;
  alone.SubmitTo(job_.engine(1));
  EXPECT_TRUE(alone.outcome.Wait().ok());
  EXPECT_EQ(alone.result(), std::vector<float>{5});
  Join(1);
  for (const auto& join : joins_) {
    ASSERT_TRUE(join->outcome.Wait().ok()) << join->outcome.Wait();
    EXPECT_EQ(join->last_joined, 1);
  }
  ExpectWorks(job_, "alone");
}

// Some tensors are large enough to travel without the fusion buffer.  Their
// sizes are odd.
TEST_P(JoinTest, FactorsAreForThoseThatContribute) {
  constexpr int64_t kCounts[] = {21'982, 1, 20'001, 0, 2783, 7, 70'001};
  Join(joined());
  const float last = joined() == kSize - 1 ? kSize - 1 : kSize;
  const float first = joined() == 0 ? 2 : 1;
  const float sum = kSize * (kSize + 1) / 2 - (joined() + 1);
  struct Case {
    ReduceOp op;
    double factor;
    float expected;
    std::optional<DataType> wire;
  };
  const Case cases[] = {
      {ReduceOp::kSum, 0.5, sum / 2, std::nullopt},
      {ReduceOp::kAverage, 2, 2 * sum / (kSize - 1), std::nullopt},
      {ReduceOp::kSum, 2, 2 * sum, DataType::kFloat16},
      {ReduceOp::kSum, 1, sum, DataType::kBfloat16},
      {ReduceOp::kMin, -1, -last, std::nullopt},
      {ReduceOp::kMax, -2, -2 * first, DataType::kBfloat16},
      {ReduceOp::kMax, 0, 0, std::nullopt},
      {ReduceOp::kProduct, 2, joined() == 0 ? 192.0f : 64.0f, std::nullopt},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(testing::Message() << Name(one.op) << " " << one.factor);
    Entries entries;
    for (int rank = 0; rank < kSize; ++rank) {
      // One request of all tensors, which share the entry's memory.
      int64_t total = 0;
      std::vector<TensorInfo> tensors;
      for (const int64_t count : kCounts) {
        tensors.push_back({"", {count}});
        total += count;
      }
      entries.push_back(std::make_unique<FloatEntry>(
          "several", std::vector<float>(total, static_cast<float>(rank + 1))));
      CollectiveRequest& request = entries.back()->request;
      request.tensors = std::move(tensors);
      request.op = one.op;
      request.prescale_factor = one.factor;
      request.wire_dtype = one.wire;
    }
    SubmitOthers(entries);
    OnOthers(entries, [&](FloatEntry& entry, const absl::Status& status) {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(entry.result() ==
                  std::vector<float>(entry.result().size(), one.expected))
          << entry.result()[0] << ", not " << one.expected;
    });
    if (HasFailure()) return;
  }
}

TEST_P(JoinTest, WhatNeedsEveryRankFailsAndTheJobGoesOn) {
  Join(joined());
  const std::string rank = "rank " + std::to_string(joined());
  const std::pair<CollectiveKind, std::string> kinds[] = {
      {CollectiveKind::kBroadcast,
       "broadcast of 'a': its root, " + rank + ", has joined"},
      {CollectiveKind::kReduceScatter,
       "reducescatter of 'a': " + rank + " has joined"},
      {CollectiveKind::kScatterInPlace,
       "reducescatter of 'a': " + rank + " has joined"},
      {CollectiveKind::kGatherInPlace,
       "allgather of 'a': " + rank + " has joined"},
      {CollectiveKind::kAlltoall, "alltoall of 'a': " + rank + " has joined"}};
  for (const auto& [kind, text] : kinds) {
    const Entries entries = MakeEntries(kSize, "a", kSize, kind);
    for (const auto& entry : entries) {
      entry->request.root_rank = joined();
      entry->request.splits.assign(kSize, 1);
    }
    SubmitOthers(entries);
    for (const int other : others()) {
      ExpectError(*entries[other], absl::StatusCode::kFailedPrecondition, text);
    }
  }
  JoinOthers();
  ExpectWorks(job_);
}

TEST_P(JoinTest, NamesByTheOrderOfCallsAgreeAfterwards) {
  Join(joined());
  for (int i = 0; i < 3; ++i) {
    const Entries entries = MakeEntries(kSize, "", 10);
    SubmitOthers(entries);
    OnOthers(entries, [](FloatEntry&, const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  JoinOthers();
  ExpectWorks(job_, "");
}

// One bucket holds a tensor that a rank contributes to, and a tensor that it
// does not contribute to.
TEST(JoinFusionTest, EachTensorHasItsOwnFactor) {
  const Entries joins = MakeJoins(kSize);
  Entries a = MakeEntries(kSize, "a", 333);
  Entries b = MakeEntries(kSize, "b", 1001);
  for (const Entries* entries : {&a, &b}) {
    for (const auto& entry : *entries) entry->request.prescale_factor = 0.5;
  }
  FloatEntry second("too late", {1}), third("too late", {1});
  Options options = Job::ShortOptions();
  options.fusion_threshold_bytes = 1 << 20;
  Job job(kSize, options);
  a[0]->SubmitTo(job.engine(0));
  b[0]->SubmitTo(job.engine(0));
  b[2]->SubmitTo(job.engine(2));
  joins[2]->SubmitTo(job.engine(2));
  a[3]->SubmitTo(job.engine(3));
  joins[3]->SubmitTo(job.engine(3));
  // When these have failed, rank 0 has received all the requests above.
  second.SubmitTo(job.engine(2));
  EXPECT_FALSE(second.outcome.Wait().ok());
  third.SubmitTo(job.engine(3));
  EXPECT_FALSE(third.outcome.Wait().ok());
  // This completes both joins at once.
  joins[1]->SubmitTo(job.engine(1));
  for (const int rank : {0, 3}) {
    ASSERT_TRUE(a[rank]->outcome.Wait().ok()) << a[rank]->outcome.Wait();
    EXPECT_EQ(a[rank]->result(), std::vector<float>(333, (1 + 4) / 2.0f));
  }
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(b[rank]->outcome.Wait().ok()) << b[rank]->outcome.Wait();
    EXPECT_EQ(b[rank]->result(), std::vector<float>(1001, (1 + 3) / 2.0f));
  }
}

TEST_P(JoinTest, AShutdownEndsAJoin) {
  Join(joined());
  job_.engine(1).Shutdown();
  ExpectError(*joins_[joined()], absl::StatusCode::kUnavailable,
              "rank 1 has shut down");
}

}  // namespace
}  // namespace tfring
