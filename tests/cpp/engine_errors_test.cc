// Errors that every rank receives while the job continues; late ranks; and
// shutdown.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/ranks.h"

namespace tfring {
namespace {

constexpr int kSize = 3;

// ---- Mismatches ----

// difference_test.cc tests each kind of mismatch.
TEST(EngineMismatchTest, EveryRankGetsTheTextAndTheJobGoesOn) {
  Job job(kSize);
  const Entries entries = MakeEntries(kSize, "bias", 8);
  entries[2]->request.tensors[0].dims = {2, 4};
  // Rank 2's request arrives last, so the error names rank 2.
  for (int rank = 0; rank < kSize; ++rank) {
    ExpectWorks(job);
    entries[rank]->SubmitTo(job.engine(rank));
  }
  ExpectErrors(entries, absl::StatusCode::kFailedPrecondition,
               "allreduce of 'bias': shapes differ. Rank 0 sent float32 (8,); "
               "rank 2 sent float32 (2, 4)");
  ExpectWorks(job, "bias");
  for (const auto& entry : entries) EXPECT_EQ(entry->outcome.calls(), 1);
}

TEST(EngineMismatchTest, ANameInFlightIsRefused) {
  Job job(2);
  const Entries first = MakeEntries(2, "twice", 4);
  FloatEntry second("twice", {5});
  first[0]->SubmitTo(job.engine(0));
  second.SubmitTo(job.engine(0));
  EXPECT_EQ(second.outcome.calls(), 1);
  ExpectError(second, absl::StatusCode::kInvalidArgument,
              "allreduce of 'twice'");
  first[1]->SubmitTo(job.engine(1));
  ExpectSums(first);
  ExpectWorks(job, "twice");
}

// ---- Stalls ----

class EngineStallTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(MissingRank, EngineStallTest,
                         testing::Range(0, kSize));

TEST_P(EngineStallTest, IsReportedThenFailsAndTheNameWorksAgain) {
  const int missing = GetParam();
  Options options = Job::ShortOptions();
  options.stall_check_seconds = 0.1;
  options.stall_shutdown_seconds = 0.4;
  RankClocks clocks(kSize);
  Job job(kSize, By(clocks), options);
  const Entries entries = MakeEntries(kSize, "late", 4);
  const std::string waited =
      "s for rank " + std::to_string(missing) + "; ranks ";

  testing::internal::CaptureStderr();
  job.Submit(entries, RanksBut(missing, kSize));
  ExpectWorks(job);  // meanwhile
  clocks.Advance(
      std::chrono::seconds(5), std::chrono::milliseconds(20), {0, 1, 2},
      [&] { return entries[(missing + 1) % kSize]->outcome.calls() > 0; });
  for (const int rank : RanksBut(missing, kSize)) {
    for (const std::string& part :
         {std::string("allreduce of 'late' has waited"), waited}) {
      ExpectError(*entries[rank], absl::StatusCode::kDeadlineExceeded, part);
    }
  }
  const std::string reports = testing::internal::GetCapturedStderr();
  for (int rank = 0; rank < kSize; ++rank) {
    const std::string from = "warning on rank " + std::to_string(rank) +
                             ": allreduce of 'late' has waited 0 " + waited;
    EXPECT_EQ(reports.find(from) != std::string::npos, rank != missing)
        << reports;
  }

  ExpectWorks(job);
  entries[missing]->SubmitTo(job.engine(missing));
  EXPECT_EQ(entries[missing]->outcome.Wait(),
            entries[(missing + 1) % kSize]->outcome.Wait());
  ExpectWorks(job, "late");
  for (const auto& entry : entries) EXPECT_EQ(entry->outcome.calls(), 1);
}

// ---- The end ----

class EngineShutdownTest : public testing::TestWithParam<int> {
 protected:
  static void ExpectShutdownError(FloatEntry& entry, int left) {
    ExpectError(entry, absl::StatusCode::kUnavailable,
                "rank " + std::to_string(left) + " has shut down");
  }
};
INSTANTIATE_TEST_SUITE_P(LeavingRank, EngineShutdownTest,
                         testing::Range(0, kSize));

TEST_P(EngineShutdownTest, OfOneRankEndsTheOthers) {
  const int leaving = GetParam();
  Job job(kSize);
  ExpectWorks(job);
  const Entries waiting = MakeEntries(kSize, "waiting", 4);
  const Entries later = MakeEntries(kSize, "later", 4);
  const int other = (leaving + 1) % kSize;
  waiting[leaving]->SubmitTo(job.engine(leaving));
  waiting[other]->SubmitTo(job.engine(other));
  job.engine(leaving).Shutdown();
  for (const int rank : {leaving, other}) {
    ExpectShutdownError(*waiting[rank], leaving);
  }
  job.Submit(later);
  for (const auto& entry : later) ExpectShutdownError(*entry, leaving);
}

// The destructor also shuts down, and no rank receives anything after it.
TEST_P(EngineShutdownTest, MayBeAskedForTwiceAndFromTwoThreads) {
  const Entries entries = MakeEntries(kSize, "waiting", 4);
  {
    Job job(kSize);
    entries[1]->SubmitTo(job.engine(1));
    OnThreads(2, [&](int) { job.engine(GetParam()).Shutdown(); });
  }
  ExpectShutdownError(*entries[1], GetParam());
  {
    Job job(kSize);
    entries[2]->SubmitTo(job.engine(2));
  }
  ExpectError(*entries[2], absl::StatusCode::kUnavailable, "");
}

// Between a rank's shutdown request and the shutdown response, entries are
// still accepted.
TEST_P(EngineShutdownTest, MayOverlapWithASubmit) {
  const int leaving = GetParam();
  const Entries hold = MakeEntries(kSize, "hold", 4);
  const Entries late = MakeEntries(kSize, "late", 4);
  Options options = Job::ShortOptions();
  options.stall_check_seconds = options.stall_shutdown_seconds = 0;
  std::atomic<int> sends{0};
  Job job(
      kSize,
      [&](int rank, ProcessSet& set) {
        if (rank != leaving) return;
        set.control = CountSends(std::move(set.control), sends);
      },
      options);
  // The coordinator answers nobody while it is held up in `done`.
  std::promise<void> held, release;
  hold[0]->callbacks.done = [&](const absl::Status&) {
    held.set_value();
    release.get_future().wait();
  };
  job.Submit(hold);
  held.get_future().wait();

  const int before = sends;
  std::thread leaver([&] { job.engine(leaving).Shutdown(); });
  // The coordinator sends no request for its own shutdown.
  EXPECT_TRUE(leaving == 0 || Await([&] { return sends > before; }));
  late[leaving]->SubmitTo(job.engine(leaving));
  release.set_value();
  leaver.join();
  job.Shutdown();
  ExpectShutdownError(*late[leaving], leaving);
}

}  // namespace
}  // namespace tfring
