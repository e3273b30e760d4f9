// Which ranks wait for one another.
#include "tfring_ops/engine/negotiation/deadlock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace tfring {
namespace {

using Ranks = std::vector<int32_t>;

class DeadlockTest : public testing::Test {
 protected:
  void Add(const std::string& name, Ranks submitted, Ranks missing) {
    CollectiveRequest& request = requests_.emplace_back();
    request.name = name;
    pending_.push_back({static_cast<int64_t>(pending_.size()), &request,
                        std::move(submitted), std::move(missing)});
  }
  // Returns the concatenated names of the requests.
  std::string Find(const std::vector<bool>& quiet = {true, true, true, true}) {
    std::string names;
    for (const PendingRequest& one : FindDeadlock(pending_, quiet)) {
      names += one.request->name;
    }
    return names;
  }

  std::deque<CollectiveRequest> requests_;
  std::vector<PendingRequest> pending_;
};

TEST_F(DeadlockTest, TwoRanksInTwoCollectives) {
  Add("a", {0}, {1});
  Add("b", {1}, {0});
  EXPECT_EQ(Find(), "ab");
  EXPECT_EQ(DescribeDeadlock(Members(2), pending_),
            "ranks wait for one another: rank 0 in allreduce of 'a' for rank "
            "1; rank 1 in allreduce of 'b' for rank 0. All ranks must make the "
            "same calls in the same order: look for a branch that they take "
            "differently.");
  EXPECT_EQ(DescribeWaits(Members(2), pending_, {1}),
            ", and rank 1 waits in allreduce of 'b'");
}

TEST_F(DeadlockTest, TheTextDoesNotDependOnWhoCameFirst) {
  Add("b", {1}, {0});
  Add("a", {0}, {1});
  EXPECT_THAT(DescribeDeadlock(Members(2), pending_),
              testing::HasSubstr("rank 0 in allreduce of 'a' for rank 1; "
                                 "rank 1 in allreduce of 'b' for rank 0."));
}

TEST_F(DeadlockTest, ARoundOfThree) {
  Add("a", {0, 3}, {1});
  Add("b", {1}, {2});
  Add("c", {2}, {0, 1});
  EXPECT_EQ(Find(), "abc");
}

TEST_F(DeadlockTest, NotWhereARankIsStillToCome) {
  Add("a", {0, 1}, {2, 3});
  Add("b", {2}, {0, 1, 3});
  EXPECT_EQ(Find(), "ab");  // It cannot help here.
  pending_.clear();
  Add("a", {0, 1, 2}, {3});
  EXPECT_EQ(Find(), "");
  // Rank 1 has more to do than to wait for rank 0.
  Add("b", {1}, {0, 2, 3});
  EXPECT_EQ(Find(), "");
}

// The collectives of a step may be called in any order.
TEST_F(DeadlockTest, NotWhileARankAsksForMore) {
  Add("a", {0}, {1});
  Add("b", {1}, {0});
  EXPECT_EQ(Find({true, false, true, true}), "");
}

TEST_F(DeadlockTest, ManyRequestsOfTheSameRanksAreOneLine) {
  for (int i = 0; i < 100; ++i) Add("a" + std::to_string(i), {0}, {1});
  Add("b", {1}, {0});
  const std::string text =
      DescribeDeadlock(Members(2), FindDeadlock(pending_, {true, true}));
  EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("'a0'"),
                                   testing::Not(testing::HasSubstr("'a1'")),
                                   testing::HasSubstr("'b'")));
}

}  // namespace
}  // namespace tfring
