// Engines of process sets that share ranks, side by side in one process.
// property_test.cc draws collectives that they run at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/faulty_transport.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/idle_watch.h"

namespace tfring {
namespace {

constexpr int kWorldSize = 4;

std::unique_ptr<Job> MakeSet(int id, const std::vector<int32_t>& ranks,
                             const Options& options = Job::ShortOptions(),
                             IdleWatch* idle_watch = nullptr,
                             const RankClocks* clocks = nullptr) {
  const auto size = static_cast<int>(ranks.size());
  return std::make_unique<Job>(
      MakeInProcessTransports(size), MakeInProcessTransports(size), options, id,
      ranks, /*on_lost=*/nullptr, [=](int rank, ProcessSet& process_set) {
        process_set.idle_watch = idle_watch;
        if (clocks != nullptr) process_set.clock = &clocks->of(rank);
      });
}

std::set<std::string> Threads() {
  std::set<std::string> ids;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(task.path().filename());
  }
  return ids;
}

// How many threads have begun since `before`.  The system may still count some
// that have been joined.
int NewThreads(const std::set<std::string>& before) {
  int count = 0;
  for (const std::string& id : Threads()) count += before.count(id) ? 0 : 1;
  return count;
}

TEST(IdleProcessSetsTest, SetsThatNobodyUsesShareAThread) {
  constexpr int kSets = 20;
  // A sanitizer starts a thread of its own with the first one of a process.
  std::thread([] {}).join();
  const std::set<std::string> before = Threads();
  IdleWatch watch;
  std::vector<std::unique_ptr<Job>> sets;
  for (int id = 1; id <= kSets; ++id) {
    sets.push_back(MakeSet(id, {0, 1, 2}, Job::ShortOptions(), &watch));
  }
  EXPECT_TRUE(Await([&] { return NewThreads(before) <= 1; }));
  ExpectWorks(*sets[3]);
  EXPECT_TRUE(Await([&] { return NewThreads(before) <= 1 + 3; }));
  // Sets that were never used shut down too.
  for (const auto& set : sets) set->Shutdown();
  EXPECT_TRUE(Await([&] { return NewThreads(before) <= 1; }));
}

TEST(IdleProcessSetsTest, OneThatAnotherRankUsesFirstStartsInTime) {
  for (const int first : {0, 2}) {
    IdleWatch watch;
    const auto set = MakeSet(1, {0, 1, 2}, Job::ShortOptions(), &watch);
    const Entries entries = MakeEntries(3, "first", 100);
    const std::set<std::string> before = Threads();
    entries[first]->SubmitTo(set->engine(first));
    // The thread of rank 0 starts too, because rank 0 is the coordinator.
    const int started = first == 0 ? 1 : 2;
    EXPECT_TRUE(Await([&] { return NewThreads(before) >= started; }));
    set->Submit(entries, RanksBut(first, 3));
    ExpectSums(entries);
  }
}

// The remaining ranks are idle and submit nothing more.
TEST(IdleProcessSetsTest, OneThatAnotherRankShutsDownEnds) {
  for (const int first : {0, 2}) {
    IdleWatch watch;
    const auto set = MakeSet(1, {0, 1, 2}, Job::ShortOptions(), &watch);
    set->engine(first).Shutdown();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(Await([&] { return !set->engine(rank).ended().ok(); }));
    }
  }
}

TEST(IdleProcessSetsTest, OneThatIsAbortedFailsOnAllRanks) {
  IdleWatch watch;
  const auto set = MakeSet(1, {0, 1, 2}, Job::ShortOptions(), &watch);
  set->engine(1).Abort(absl::UnavailableError("lost elsewhere"));
  const Entries entries = MakeEntries(3, "after", 100);
  set->Submit(entries);
  ExpectErrors(entries, absl::StatusCode::kUnavailable, "lost elsewhere");
}

// A rank without an engine thread is not reported as silent.
TEST(IdleProcessSetsTest, HeartbeatsGoOn) {
  Options options = Job::ShortOptions();
  options.stall_check_seconds = 3;
  options.stall_shutdown_seconds = 30;
  RankClocks clocks(3);
  IdleWatch watch(clocks.of(0));
  const auto set = MakeSet(1, {0, 1, 2}, options, &watch, &clocks);
  const Entries entries = MakeEntries(3, "late", 100);
  testing::internal::CaptureStderr();
  entries[0]->SubmitTo(set->engine(0));
  clocks.AwaitLooks({0});
  clocks.Advance(std::chrono::seconds(4), std::chrono::milliseconds(250),
                 {0, 1, 2});
  for (const int rank : {1, 2}) entries[rank]->SubmitTo(set->engine(rank));
  ExpectSums(entries);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::AllOf(
                  testing::HasSubstr("for ranks 1 and 2"),
                  testing::Not(testing::HasSubstr("nothing has been heard"))));
}

TEST(ProcessSetsTest, OneThatWaitsHoldsUpNoOther) {
  Job world(kWorldSize);
  const auto set = MakeSet(1, {1, 3});
  const Entries waiting = MakeEntries(2, "waits", 10);
  waiting[0]->SubmitTo(set->engine(0));
  ExpectWorks(world, "waits");
  EXPECT_EQ(waiting[0]->outcome.calls(), 0);
  waiting[1]->SubmitTo(set->engine(1));
  ExpectSums(waiting);
}

TEST(ProcessSetsTest, ErrorsHaveTheWorldsRanks) {
  const auto set = MakeSet(7, {2, 5, 9});
  const Entries differing = MakeEntries(3, "bias", 8);
  differing[2]->request.op = ReduceOp::kMax;
  differing[1]->request.op = ReduceOp::kMax;
  differing[0]->SubmitTo(set->engine(0));
  ExpectWorks(*set);
  differing[1]->SubmitTo(set->engine(1));
  ExpectWorks(*set);
  differing[2]->SubmitTo(set->engine(2));
  ExpectErrors(differing, absl::StatusCode::kFailedPrecondition,
               "allreduce of 'bias' (process set 7): ops differ. Rank 2 sent "
               "sum; rank 5 sent max (ranks 5 and 9 differ from rank 2)");
  set->engine(1).Shutdown();
  const Entries after = MakeEntries(3, "after", 8);
  after[0]->SubmitTo(set->engine(0));
  ExpectError(*after[0], absl::StatusCode::kUnavailable,
              "rank 5 has shut down tfring (process set 7)");

  Options options = Job::ShortOptions();
  options.stall_shutdown_seconds = 5;
  RankClocks clocks(3);
  const auto impatient =
      MakeSet(7, {2, 5, 9}, options, /*idle_watch=*/nullptr, &clocks);
  const Entries late = MakeEntries(3, "late", 8);
  late[1]->SubmitTo(impatient->engine(1));
  clocks.AwaitLooks({0, 1, 2});
  clocks.Advance(std::chrono::seconds(10), std::chrono::milliseconds(200),
                 {0, 1, 2}, [&] { return late[1]->outcome.calls() > 0; });
  ExpectError(*late[1], absl::StatusCode::kDeadlineExceeded,
              "allreduce of 'late' (process set 7) has waited 5 s for ranks 2 "
              "and 9; rank 5 asked for it");
}

TEST(ProcessSetsTest, ARootIsARankOfTheWorld) {
  const auto set = MakeSet(7, {2, 5, 9});
  const Entries entries =
      MakeEntries(3, "from 5", 4, CollectiveKind::kBroadcast);
  for (const auto& entry : entries) entry->request.root_rank = 5;
  set->Submit(entries);
  for (const auto& entry : entries) {
    EXPECT_TRUE(entry->outcome.Wait().ok());
    EXPECT_EQ(entry->result(), std::vector<float>(4, 2));
  }
  for (const int no_member : {-1, 0, 1, 10}) {
    FloatEntry entry("from elsewhere", {1});
    entry.request.kind = CollectiveKind::kBroadcast;
    entry.request.root_rank = no_member;
    entry.SubmitTo(set->engine(0));
    ExpectError(entry, absl::StatusCode::kInvalidArgument,
                "(process set 7): root_rank is " + std::to_string(no_member) +
                    ", which is not one of its ranks 2, 5, 9");
  }
  ExpectWorks(*set);
}

TEST(ProcessSetsTest, ALostRankEndsTheOtherSetsToo) {
  // Like capi.cc, this ends the world on rank 2, which is in both sets.
  Job world(kWorldSize);
  const auto data = [] {
    auto transports = MakeInProcessTransports(2);
    transports[1] = MakeFaultyTransport(std::move(transports[1]), 1);
    return transports;
  };
  Job set(MakeInProcessTransports(2), data(), Job::ShortOptions(), 1, {0, 2},
          [&](const absl::Status& status) { world.engine(2).Abort(status); });
  // Rank 3 waits for the remaining ranks, which never submit.
  const Entries waiting = MakeEntries(kWorldSize, "waits", 10);
  waiting[3]->SubmitTo(world.engine(3));
  const Entries doomed = MakeEntries(2, "doomed", 10);
  set.Submit(doomed);
  ExpectError(*waiting[3], absl::StatusCode::kUnavailable, "wire was cut");
  ExpectErrors(doomed, absl::StatusCode::kUnavailable, "wire was cut");
}

}  // namespace
}  // namespace tfring
