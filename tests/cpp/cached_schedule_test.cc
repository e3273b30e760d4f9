// Cached schedules, without messages or threads.
#include "tfring_ops/engine/negotiation/cached_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/negotiation_fixture.h"

namespace tfring {
namespace {

constexpr int kMaxPeers = 32;

CollectiveRequest MakeAllgather(const std::string& name, int64_t rows) {
  return MakeRequest(name, {rows, 2}, CollectiveKind::kAllgather);
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
      // A period must not contain a name twice.
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

// The simulation below shows that requests are next in their turn.
TEST(CachedScheduleTest, OnlyAnEqualRequestIsNextOrAnAllgatherOfOtherRows) {
  CachedSchedule schedule({MakeRequest("a"), MakeAllgather("b", 3)}, /*rank=*/0,
                          /*size=*/2, NeighborsOf(0, {0, 0}, kMaxPeers));
  EXPECT_FALSE(schedule.IsNext(MakeRequest("c")));
  EXPECT_FALSE(schedule.IsNext(MakeRequest("a", {5})));
  schedule.Submit(MakeRequest("a"));
  CollectiveRequest request = MakeAllgather("b", 5);
  EXPECT_TRUE(schedule.IsNext(request));
  request.tensors[0].dims[1] = 3;
  EXPECT_FALSE(schedule.IsNext(request));
  EXPECT_TRUE(schedule.TakeReady().empty());
}

// An embedding with equal batches must not send its sizes in each step.
TEST(CachedScheduleTest, SizesAreSaidWhenTheyChange) {
  CachedSchedule schedule({MakeAllgather("a", 3)}, /*rank=*/0, /*size=*/2,
                          NeighborsOf(0, {0, 0}, kMaxPeers));
  int64_t item = 0;
  for (const int64_t rows : {3, 3, 4, 4, 0}) {
    schedule.Submit(MakeAllgather("a", rows));
    const ProgressUpdate report = schedule.TakeReport().value();
    EXPECT_EQ(report.sizes.size(), item % 2 == 0 ? 1u : 0u) << item;
    std::vector<RequestSizes> others;
    if (item == 0) others.push_back({0, 1, {7}});
    ASSERT_TRUE(schedule.Receive(1, {{++item, false, false}, {}, others}).ok());
    const auto ready = schedule.TakeReady();
    ASSERT_EQ(ready.size(), 1u);
    EXPECT_EQ(ready[0].sizes, (std::vector<std::vector<int64_t>>{{rows}, {7}}));
  }
}

TEST(CachedScheduleTest, ProgressIsNotTakenBack) {
  CachedSchedule schedule({MakeRequest("a")}, /*rank=*/0, /*size=*/2,
                          NeighborsOf(0, {0, 0}, kMaxPeers));
  const auto receive = [&](const Progress& progress) {
    return schedule.Receive(1, {progress, {}, {}}).ok();
  };
  EXPECT_TRUE(receive({3, false, false}));
  EXPECT_FALSE(receive({2, false, false}));
  EXPECT_TRUE(receive({3, true, true}));
  EXPECT_FALSE(receive({4, false, false}));
}

TEST(CachedScheduleTest, SizesOfNoRankOrOfAnItemThatHasRunAreRefused) {
  CachedSchedule schedule({MakeAllgather("a", 3)}, /*rank=*/0, /*size=*/2,
                          NeighborsOf(0, {0, 0}, kMaxPeers));
  for (const int32_t rank : {-1, 2}) {
    EXPECT_FALSE(
        schedule.Receive(1, {{1, false, false}, {}, {{0, rank, {3}}}}).ok());
  }
  schedule.Submit(MakeAllgather("a", 3));
  EXPECT_TRUE(schedule.TakeReport());
  EXPECT_TRUE(schedule.Receive(1, {{1, false, false}, {}, {{0, 1, {3}}}}).ok());
  EXPECT_EQ(schedule.TakeReady().size(), 1u);
  EXPECT_FALSE(
      schedule.Receive(1, {{2, false, false}, {}, {{0, 1, {3}}}}).ok());
}

// Ranks that submit, leave and receive updates in any order.
class Simulation {
 public:
  Simulation(unsigned seed, const std::vector<int>& nodes, int max_peers)
      : random_(seed), size_(static_cast<int>(nodes.size())) {
    const std::vector<CollectiveRequest> items = {
        RequestOf(0, 0), RequestOf(0, 1), RequestOf(0, 2)};
    for (int rank = 0; rank < size_; ++rank) {
      neighbors_.push_back(NeighborsOf(rank, nodes, max_peers));
      schedules_.emplace_back(items, rank, size_, neighbors_.back());
      leaves_at_.push_back(Below(30));
    }
    messages_.resize(size_, std::vector<std::deque<ProgressUpdate>>(size_));
    taken_.resize(size_);
  }

  // Returns true if items have come together.
  bool Run() {
    while (!std::all_of(
        schedules_.begin(), schedules_.end(),
        [](const CachedSchedule& schedule) { return schedule.over(); })) {
      const int rank = Below(size_);
      CachedSchedule& schedule = schedules_[rank];
      switch (Below(4)) {
        case 0:
          for (int i = Below(3); i >= 0 && !schedule.has_left(); --i) {
            Submit(rank);
          }
          break;
        case 1:
          if (schedule.SomeHaveLeft()) schedule.Leave();
          break;
        case 2:
          Deliver(rank);
          break;
        default:
          Take(rank);
      }
      Say(rank);
      if (schedule.over() && neighbors_[rank].peers.empty()) {
        // The root of a tree is the first.
        EXPECT_TRUE(schedules_[0].over());
      }
      if (testing::Test::HasFailure()) return shared_;
    }
    Check();
    return shared_;
  }

 private:
  int Below(int end) { return static_cast<int>(random_() % end); }

  // Items b are allgathers, of rows that change now and then.
  static int64_t RowsOf(int rank, int64_t item) {
    return (rank * 7 + item / 9) % 5;
  }
  static CollectiveRequest RequestOf(int rank, int64_t item) {
    const std::string name(1, static_cast<char>('a' + item % 3));
    return name == "b" ? MakeAllgather(name, RowsOf(rank, item))
                       : MakeRequest(name);
  }

  void Submit(int rank) {
    CachedSchedule& schedule = schedules_[rank];
    const int64_t count = schedule.submitted();
    if (count == leaves_at_[rank]) return schedule.Leave();
    const CollectiveRequest request = RequestOf(rank, count);
    ASSERT_TRUE(schedule.IsNext(request));
    schedule.Submit(request);
  }

  void Say(int rank) {
    const ProgressNeighbors& neighbors = neighbors_[rank];
    if (const auto report = schedules_[rank].TakeReport()) {
      for (const int peer : neighbors.peers) Send(rank, peer, *report);
      if (neighbors.parent >= 0) Send(rank, neighbors.parent, *report);
    }
    if (const auto total = schedules_[rank].TakeTotal()) {
      for (const int child : neighbors.children) Send(rank, child, *total);
    }
  }

  void Send(int from, int to, const ProgressUpdate& update) {
    messages_[from][to].push_back(update);
  }

  void Deliver(int to) {
    const std::vector<int> neighbors = neighbors_[to].All();
    if (neighbors.empty()) return;
    const int from = neighbors[Below(static_cast<int>(neighbors.size()))];
    std::deque<ProgressUpdate>& messages = messages_[from][to];
    if (messages.empty()) return;
    ASSERT_FALSE(schedules_[to].IsLast(from));
    ASSERT_TRUE(schedules_[to].Receive(from, messages.front()).ok());
    messages.pop_front();
  }

  void Take(int rank) {
    int64_t item = schedules_[rank].taken();
    const auto ready = schedules_[rank].TakeReady();
    for (const CachedSchedule::Item& one : ready) {
      taken_[rank] += one.request.name;
      std::vector<std::vector<int64_t>> sizes;
      for (int other = 0; other < size_; ++other) {
        ASSERT_GT(schedules_[other].submitted(), item);
        if (one.request.name == "b") sizes.push_back({RowsOf(other, item)});
      }
      ASSERT_EQ(one.sizes, sizes) << "item " << item << " on rank " << rank;
      ++item;
    }
    // The marks show that all ranks take the same items together.
    if (!ready.empty()) taken_[rank] += '|';
    shared_ = shared_ || ready.size() > 1;
  }

  void Check() {
    int64_t least = schedules_[0].submitted();
    for (const CachedSchedule& schedule : schedules_) {
      least = std::min(least, schedule.submitted());
    }
    for (int rank = 0; rank < size_; ++rank) {
      const CachedSchedule& schedule = schedules_[rank];
      ASSERT_EQ(schedule.taken(), least);
      ASSERT_EQ(taken_[rank], taken_[0]);
      ASSERT_EQ(schedule.pending().size(), schedule.submitted() - least);
      if (!schedule.pending().empty()) {
        ASSERT_EQ(schedule.pending()[0].name[0], 'a' + least % 3);
      }
      for (const auto& unread : messages_[rank]) ASSERT_TRUE(unread.empty());
    }
  }

  std::mt19937 random_;
  const int size_;
  std::vector<ProgressNeighbors> neighbors_;  // of each rank
  std::vector<CachedSchedule> schedules_;     // by rank
  std::vector<int64_t> leaves_at_;  // when each rank leaves, at the latest
  std::vector<std::vector<std::deque<ProgressUpdate>>> messages_;  // from, to
  std::vector<std::string> taken_;                                 // by rank
  bool shared_ = false;  // whether items came together
};

TEST(CachedScheduleTest, AllRunTheSameWhoeverLeavesWhenever) {
  int shared = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<int> nodes(1 + seed % 5, 0);
    if (Simulation(seed, nodes, kMaxPeers).Run()) ++shared;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(shared, 0);
}

TEST(CachedScheduleTest, AllRunTheSameInATree) {
  int shared = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    // From 2 to 60 ranks on 1 to 30 machines.
    std::vector<int> nodes(2 + seed * 37 % 59);
    for (size_t i = 0; i < nodes.size(); ++i) {
      nodes[i] = static_cast<int>(i) / 4 % (1 + static_cast<int>(seed) % 30);
    }
    if (Simulation(seed, nodes, /*max_peers=*/1).Run()) ++shared;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(shared, 0);
}

// ---- Who tells whom ----

TEST(ProgressTreeTest, FewRanksAreAllPeers) {
  const std::vector<int> nodes(kMaxPeers, 0);
  const ProgressNeighbors neighbors = NeighborsOf(3, nodes, kMaxPeers);
  EXPECT_EQ(neighbors.peers.size(), nodes.size() - 1);
  EXPECT_EQ(neighbors.All(), neighbors.peers);
}

TEST(ProgressTreeTest, ATreeReachesAllByFewNeighbors) {
  for (const int size : {33, 512, 2048}) {
    for (const int ranks_of_node : {1, 8, size}) {
      std::vector<int> nodes;
      for (int rank = 0; rank < size; ++rank) {
        nodes.push_back(rank / ranks_of_node);
      }
      std::vector<ProgressNeighbors> of_rank;
      for (int rank = 0; rank < size; ++rank) {
        of_rank.push_back(NeighborsOf(rank, nodes, kMaxPeers));
      }
      int between_nodes = 0, deepest = 0;
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_LE(of_rank[rank].children.size(), 16u);
        EXPECT_TRUE(of_rank[rank].peers.empty());
        EXPECT_EQ(of_rank[rank].parent < 0, rank == 0);
        for (const int child : of_rank[rank].children) {
          EXPECT_EQ(of_rank[child].parent, rank);
          between_nodes += nodes[child] != nodes[rank];
        }
        int depth = 0;
        for (int at = rank; at != 0; ++depth) at = of_rank[at].parent;
        deepest = std::max(deepest, depth);
      }
      EXPECT_EQ(between_nodes, nodes.back());
      EXPECT_LE(deepest, size <= 512 ? 4 : 5);
    }
  }
}

}  // namespace
}  // namespace tfring
