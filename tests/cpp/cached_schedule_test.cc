// Cached schedules, without messages or threads.
#include "tfring_ops/engine/negotiation/cached_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tfring {
namespace {

CollectiveRequest MakeRequest(const std::string& name,
                              std::vector<int64_t> dims = {4}) {
  CollectiveRequest request;
  request.name = name;
  request.tensors = {{name, std::move(dims)}};
  return request;
}

// ---- Periods of requests ----

// The names of the period after each letter of `text` has been a request.
std::string PeriodAfter(PeriodFinder& finder, const std::string& text) {
  for (const char letter : text) finder.Add(MakeRequest({letter}));
  std::string names;
  for (const CollectiveRequest& item : finder.Period()) names += item.name;
  return names;
}

TEST(PeriodFinderTest, APeriodIsFoundWhenItHasComeTwice) {
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"a", ""},
      {"aa", "a"},
      {"abab", "ab"},
      {"aba", ""},
      {"abcab", ""},
      {"abcabc", "abc"},
      {"xyabcabc", "abc"},
      {"abcabca", "bca"},
      {"abcacb", ""},
      {"abcabcx", ""},
      {"abcabd", ""},
      // Not where a name comes twice in it.
      {"aabaabaab", ""}};
  for (const auto& [text, period] : cases) {
    PeriodFinder finder;
    EXPECT_EQ(PeriodAfter(finder, text), period) << text;
  }
}

TEST(PeriodFinderTest, OnlyOfRequestsThatAreEqual) {
  PeriodFinder finder;
  for (int64_t length = 1; length < 5; ++length) {
    finder.Add(MakeRequest("a", {length}));
    EXPECT_TRUE(finder.Period().empty());
  }
  finder.Add(MakeRequest("a", {4}));
  EXPECT_EQ(finder.Period().size(), 1u);
}

TEST(PeriodFinderTest, NotAcrossAReset) {
  PeriodFinder finder;
  EXPECT_EQ(PeriodAfter(finder, "aba"), "");
  finder.Reset();
  EXPECT_EQ(PeriodAfter(finder, "bab"), "");
  EXPECT_EQ(PeriodAfter(finder, "a"), "ba");
}

TEST(PeriodFinderTest, ALongPeriodIsNone) {
  for (const int length :
       {PeriodFinder::kMaxPeriod, PeriodFinder::kMaxPeriod + 1}) {
    PeriodFinder finder;
    for (int i = 0; i < 5 * length; ++i) {
      finder.Add(MakeRequest(std::to_string(i % length)));
    }
    EXPECT_EQ(finder.Period().empty(), length > PeriodFinder::kMaxPeriod);
  }
}

TEST(PeriodFinderTest, WhoLeavesSoonWaitsForMoreRepetitions) {
  PeriodFinder finder;
  EXPECT_EQ(PeriodAfter(finder, "abab"), "ab");
  finder.ScheduleHasEnded(/*items=*/7);
  EXPECT_EQ(PeriodAfter(finder, "abababa"), "");
  EXPECT_EQ(PeriodAfter(finder, "b"), "ab");
  finder.ScheduleHasEnded(/*items=*/0);
  EXPECT_EQ(PeriodAfter(finder, "ababababababab"), "");
  EXPECT_EQ(PeriodAfter(finder, "ab"), "ab");
  finder.ScheduleHasEnded(/*items=*/8);
  EXPECT_EQ(PeriodAfter(finder, "abab"), "ab");
}

// ---- The cached schedule ----

TEST(CachedScheduleTest, WhatIsNextGoesRoundAndRound) {
  CachedSchedule schedule({MakeRequest("a"), MakeRequest("b")}, /*size=*/2,
                          /*rank=*/0);
  for (const char* name : {"a", "b", "a"}) {
    EXPECT_FALSE(schedule.IsNext(MakeRequest("c")));
    EXPECT_FALSE(schedule.IsNext(MakeRequest(name, {5})));
    ASSERT_TRUE(schedule.IsNext(MakeRequest(name)));
    schedule.Submit(MakeRequest(name));
  }
  EXPECT_EQ(schedule.progress().count, 3);
  EXPECT_FALSE(schedule.TakeNext());
}

TEST(CachedScheduleTest, ProgressIsNotTakenBack) {
  CachedSchedule schedule({MakeRequest("a")}, /*size=*/2, /*rank=*/0);
  EXPECT_TRUE(schedule.Receive(1, {3, false}).ok());
  EXPECT_FALSE(schedule.Receive(1, {2, false}).ok());
  EXPECT_TRUE(schedule.Receive(1, {3, true}).ok());
  EXPECT_FALSE(schedule.Receive(1, {4, false}).ok());
}

// Ranks that submit, leave and receive updates in any order.
class Simulation {
 public:
  Simulation(unsigned seed, int size) : random_(seed), size_(size) {
    const std::vector<CollectiveRequest> items = {
        MakeRequest("a"), MakeRequest("b"), MakeRequest("c")};
    for (int rank = 0; rank < size; ++rank) {
      schedules_.emplace_back(items, size, rank);
      leaves_at_.push_back(static_cast<int64_t>(Below(30)));
    }
    sent_.resize(size);
    messages_.resize(size, std::vector<std::deque<ProgressUpdate>>(size));
    taken_.resize(size);
  }

  void Run() {
    while (!std::all_of(
        schedules_.begin(), schedules_.end(),
        [](const CachedSchedule& schedule) { return schedule.over(); })) {
      const int rank = Below(size_);
      CachedSchedule& schedule = schedules_[rank];
      switch (Below(4)) {
        case 0:
          if (!schedule.HasLeft(rank)) Submit(rank);
          break;
        case 1:
          if (schedule.SomeoneHasLeft()) schedule.Leave();
          break;
        case 2:
          Deliver(Below(size_), rank);
          break;
        default:
          if (auto request = schedule.TakeNext()) Take(rank, *request);
      }
      Say(rank);
    }
    Check();
  }

 private:
  int Below(int end) { return static_cast<int>(random_() % end); }

  void Submit(int rank) {
    CachedSchedule& schedule = schedules_[rank];
    const int64_t count = schedule.progress().count;
    if (count == leaves_at_[rank]) return schedule.Leave();
    const CollectiveRequest request =
        MakeRequest(std::string(1, static_cast<char>('a' + count % 3)));
    ASSERT_TRUE(schedule.IsNext(request));
    schedule.Submit(request);
  }

  void Say(int rank) {
    const ProgressUpdate& news = schedules_[rank].progress();
    ProgressUpdate& before = sent_[rank];
    if (news.count == before.count && news.leaves == before.leaves) return;
    before = news;
    for (auto& of_peer : messages_[rank]) of_peer.push_back(news);
  }

  void Deliver(int from, int to) {
    std::deque<ProgressUpdate>& messages = messages_[from][to];
    if (from == to || messages.empty()) return;
    ASSERT_TRUE(schedules_[to].Receive(from, messages.front()).ok());
    messages.pop_front();
  }

  void Take(int rank, const CollectiveRequest& request) {
    const int64_t item = static_cast<int64_t>(taken_[rank].size());
    taken_[rank] += request.name;
    for (const CachedSchedule& schedule : schedules_) {
      ASSERT_GT(schedule.progress().count, item);
    }
  }

  void Check() {
    int64_t least = schedules_[0].progress().count;
    for (const CachedSchedule& schedule : schedules_) {
      least = std::min(least, schedule.progress().count);
    }
    for (int rank = 0; rank < size_; ++rank) {
      const CachedSchedule& schedule = schedules_[rank];
      ASSERT_EQ(schedule.taken(), least);
      ASSERT_EQ(taken_[rank], taken_[0]);
      ASSERT_EQ(schedule.pending().size(), schedule.progress().count - least);
      if (!schedule.pending().empty()) {
        ASSERT_EQ(schedule.pending()[0].name[0], 'a' + least % 3);
      }
      for (const auto& unread : messages_[rank]) {
        ASSERT_TRUE(&unread == &messages_[rank][rank] || unread.empty());
      }
    }
  }

  std::mt19937 random_;
  const int size_;
  std::vector<CachedSchedule> schedules_;  // by rank
  std::vector<int64_t> leaves_at_;         // at the latest
  std::vector<ProgressUpdate> sent_;       // by rank
  std::vector<std::vector<std::deque<ProgressUpdate>>> messages_;  // from, to
  std::vector<std::string> taken_;                                 // by rank
};

TEST(CachedScheduleTest, AllRunTheSameWhoeverLeavesWhenever) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Simulation(seed, /*size=*/1 + static_cast<int>(seed % 5)).Run();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tfring
