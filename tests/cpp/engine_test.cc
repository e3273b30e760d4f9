// Tests of an engine without failures.  property_test.cc draws collectives of
// all kinds in any order.
#include "tfring_ops/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/await.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/base/clock.h"

namespace tfring {
namespace {

class EngineTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Sizes, EngineTest, testing::Values(1, 2, 3, 4));

TEST_P(EngineTest, EveryRankHasTheOptionsOfRankZero) {
  auto control = MakeInProcessTransports(size());
  auto data = MakeInProcessTransports(size());
  OnThreads(size(), [&](int rank) {
    Options options;
    options.segment_bytes = 100 + rank;
    options.stall_check_seconds = 7 + rank;
    ProcessSet process_set;
    process_set.control = std::move(control[rank]);
    process_set.data = std::move(data[rank]);
    const auto engine =
        Engine::Start(options, std::move(process_set), CpuKernels()).value();
    EXPECT_EQ(engine->rank(), rank);
    EXPECT_EQ(engine->size(), size());
    EXPECT_EQ(engine->options().segment_bytes, 100);
    EXPECT_EQ(engine->options().stall_check_seconds, 7);
  });
}

TEST_P(EngineTest, NamelessEntriesMeetByTheOrderOfSubmission) {
  Job job(size());
  std::vector<Entries> all;
  for (const size_t count : {3, 1, 700}) {
    all.push_back(MakeEntries(size(), "", count));
  }
  // Nameless entries of another kind have an order of their own.
  const Entries broadcasts =
      MakeEntries(size(), "", 5, CollectiveKind::kBroadcast);
  OnThreads(size(), [&](int rank) {
    if (rank == 0) broadcasts[rank]->SubmitTo(job.engine(rank));
    for (const Entries& entries : all) {
      entries[rank]->SubmitTo(job.engine(rank));
    }
    if (rank != 0) broadcasts[rank]->SubmitTo(job.engine(rank));
  });
  for (const Entries& entries : all) ExpectSums(entries);
  for (const auto& entry : broadcasts) {
    EXPECT_TRUE(entry->outcome.Wait().ok());
    EXPECT_EQ(entry->result(), std::vector<float>(5, 1));
  }
}

TEST_P(EngineTest, ManyThreadsMaySubmitTheSameNamesAgainAndAgain) {
  constexpr int kThreads = 3;
  Options options = Job::ShortOptions();
  options.fusion_threshold_bytes = 1000;
  Job job(size(), options);
  OnThreads(size() * kThreads, [&](int worker) {
    const int rank = worker / kThreads;
    const std::string name = "thread " + std::to_string(worker % kThreads);
    for (int round = 0; round < 30; ++round) {
      FloatEntry entry(name, std::vector<float>(50, round));
      entry.SubmitTo(job.engine(rank));
      const absl::Status status = entry.outcome.Wait();
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(entry.result(), std::vector<float>(50, round * size()));
    }
  });
}

TEST_P(EngineTest, ABarrierIsDoneWhenTheLastRankHasCome) {
  Job job(size());
  for (int last = 0; last < size(); ++last) {
    const Entries barriers =
        MakeEntries(size(), "", 0, CollectiveKind::kBarrier);
    job.Submit(barriers, RanksBut(last, size()));
    ExpectWorks(job);
    for (const auto& one : barriers) EXPECT_EQ(one->outcome.calls(), 0);
    job.Submit(barriers, {last});
    ExpectOk(barriers);
  }
}

TEST_P(EngineTest, ScalesBeforeAndAfter) {
  Job job(size());
  for (const CollectiveKind kind :
       {CollectiveKind::kAllreduce, CollectiveKind::kReduceScatter}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
      const Entries entries = MakeEntries(size(), "scaled", 500, kind);
      for (const auto& entry : entries) {
        entry->request.op = op;
        entry->request.prescale_factor = 2;
        entry->request.postscale_factor = 0.25;
      }
      job.Submit(entries);
      float whole = 0.5f * size();  // the maximum
      if (op != ReduceOp::kMax) whole *= 0.5f * (size() + 1);
      if (op == ReduceOp::kAverage) whole /= size();
      for (const auto& entry : entries) {
        EXPECT_TRUE(entry->outcome.Wait().ok());
        // A reducescatter gives every rank at least this many elements.
        for (int i = 0; i < 500 / size(); ++i) {
          EXPECT_EQ(entry->result()[i], whole) << Name(kind) << Name(op);
        }
      }
    }
  }
}

TEST_P(EngineTest, DoneMaySubmitTheNextEntryOfTheSameName) {
  Job job(size());
  OnThreads(size(), [&](int rank) {
    Completion last;
    std::vector<float> data(10, 1);
    std::function<void(int)> submit = [&](int round) {
      TensorEntry entry;
      entry.request.name = "again";
      entry.request.tensors = {{"again", {10}}};
      entry.buffers = {{data.data(), data.data()}};
      entry.done = [&, round](const absl::Status& status) {
        if (status.ok() && round < 4) return submit(round + 1);
        last.Done(status);
      };
      job.engine(rank).Submit(std::move(entry));
    };
    submit(1);
    EXPECT_TRUE(last.Wait().ok());
    EXPECT_EQ(data, std::vector<float>(10, size() * size() * size() * size()));
  });
}

// A clock whose waits end only when they are notified, until they are freed.
class NotifiedClock final : public Clock {
 public:
  time_point Now() const override { return SteadyClock().Now(); }
  void WaitFor(std::condition_variable& changed,
               std::unique_lock<std::mutex>& lock,
               duration /*timeout*/) const override {
    ++waits_;
    is_free_
        ? SteadyClock().WaitFor(changed, lock, std::chrono::milliseconds(1))
        : changed.wait(lock);
  }

  int waits() const { return waits_; }
  void Free() { is_free_ = true; }

 private:
  mutable std::atomic<int> waits_{0};
  std::atomic<bool> is_free_{false};
};

// The job has one rank, whose thread sleeps, so the test does not depend on
// time.
TEST(SmallRequestTest, RunsOnTheThreadThatSubmitsIt) {
  NotifiedClock clock;
  Job job(1, [&](int, ProcessSet& set) { set.clock = &clock; });
  EXPECT_TRUE(Await([&] { return clock.waits() > 0; }));
  const auto is_run_here = [&](int64_t count) {
    FloatEntry entry("x", std::vector<float>(count, 1.0F));
    std::thread::id thread;
    entry.callbacks.done = [&](const absl::Status&) {
      thread = std::this_thread::get_id();
    };
    entry.SubmitTo(job.engine(0));
    EXPECT_TRUE(entry.outcome.Wait().ok());
    return thread == std::this_thread::get_id();
  };
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(is_run_here(10));
  EXPECT_EQ(clock.waits(), 1);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(is_run_here(300'000));
  clock.Free();  // A shutdown may take several looks.
}

// A request that no other rank has submitted is left to the engine's thread,
// and Submit returns.
TEST(SmallRequestTest, LeavesWhatOthersLackToTheEngine) {
  Job job(2);
  for (int i = 0; i < 20; ++i) {
    const Entries entries = MakeEntries(2, "x", 10);
    entries[0]->SubmitTo(job.engine(0));
    EXPECT_EQ(entries[0]->outcome.calls(), 0);
    entries[1]->SubmitTo(job.engine(1));
    ExpectSums(entries);
  }
}

TEST_P(EngineTest, AnIdleEngineSleepsAndSoonLooksSeldom) {
  RankClocks clocks(size());
  Job job(size(), By(clocks));
  const auto all_wait_for = [&](Clock::duration time) {
    return Await([&] {
      for (int rank = 0; rank < size(); ++rank) {
        if (clocks.of(rank).last_wait() != time) return false;
      }
      return true;
    });
  };
  for (int i = 0; i < 2; ++i) {
    ExpectWorks(job);
    EXPECT_TRUE(all_wait_for(std::chrono::milliseconds(20)));
    clocks.Advance(std::chrono::seconds(1));
    EXPECT_TRUE(all_wait_for(std::chrono::milliseconds(250)));
  }
}

}  // namespace
}  // namespace tfring
