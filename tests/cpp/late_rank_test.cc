// One rank is late while steps of a cached schedule repeat.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"

namespace tfring {
namespace {

void RunSteps(Job& job, int steps) {
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < 2; ++i) ExpectWorks(job, "bucket " + std::to_string(i));
  }
}

struct LateRank {
  int size;
  int rank;
};

class LateRankTest : public testing::TestWithParam<LateRank> {
 protected:
  static int size() { return GetParam().size; }
  static int late() { return GetParam().rank; }
  static std::string Late() { return "rank " + std::to_string(late()); }

  static std::vector<int> others() { return RanksBut(late(), size()); }
  void SubmitOthers(const Entries& entries) { job_->Submit(entries, others()); }

  // Every rank but late() has this outcome, and a text with all `parts`.
  static void ExpectOthers(const Entries& entries, absl::StatusCode code,
                           const std::vector<std::string>& parts) {
    for (const int rank : others()) {
      for (const std::string& part : parts) {
        ExpectError(*entries[rank], code, part);
      }
    }
  }

  // Expects `parts` in the captured stderr.
  static void ExpectWarning(const std::vector<std::string>& parts) {
    const std::string text = testing::internal::GetCapturedStderr();
    for (const std::string& part : parts) {
      EXPECT_THAT(text, testing::HasSubstr(part));
    }
  }

  // Makes the other ranks wait until the entries are done.
  void Wait(const Entries& entries) {
    const std::vector<int> ranks = others();
    clocks_.AwaitLooks(ranks);
    clocks_.Advance(
        std::chrono::minutes(1), std::chrono::milliseconds(50), ranks, [&] {
          return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
            return entries[rank]->outcome.calls() > 0;
          });
        });
  }

  static Options MakeOptions() {
    Options options = Job::ShortOptions();
    options.stall_check_seconds = 2;
    options.stall_shutdown_seconds = 4;
    return options;
  }

  RankClocks clocks_{size()};
  std::unique_ptr<Job> job_ =
      std::make_unique<Job>(size(), By(clocks_), MakeOptions());
};
INSTANTIATE_TEST_SUITE_P(Rank, LateRankTest,
                         testing::Values(LateRank{2, 1}, LateRank{3, 0}));

TEST_P(LateRankTest, IsReportedThenItFailsAndTheStepsGoOn) {
  RunSteps(*job_, 4);
  testing::internal::CaptureStderr();
  const Entries entries = MakeEntries(size(), "bucket 0", 100);
  SubmitOthers(entries);
  Wait(entries);
  const std::string waited = "allreduce of 'bucket 0' has waited ";
  ExpectOthers(entries, absl::StatusCode::kDeadlineExceeded,
               {waited, " s for " + Late()});
  entries[late()]->SubmitTo(job_->engine(late()));
  EXPECT_EQ(entries[late()]->outcome.Wait().code(),
            absl::StatusCode::kDeadlineExceeded);
  ExpectWarning({waited, " s for " + Late()});
  RunSteps(*job_, 8);
}

// A process that hangs cannot even leave the cached schedule by an update.
TEST_P(LateRankTest, MayBeAProcessThatHangs) {
  RunSteps(*job_, 4);
  testing::internal::CaptureStderr();
  std::promise<void> hangs, may_go_on;
  const Entries last = MakeEntries(size(), "bucket 0", 100);
  last[late()]->callbacks.done = [&](const absl::Status&) {
    hangs.set_value();
    may_go_on.get_future().wait();  // with the engine's thread
  };
  job_->Submit(last, {late()});
  SubmitOthers(last);
  hangs.get_future().wait();
  const Entries next = MakeEntries(size(), "bucket 1", 100);
  SubmitOthers(next);
  Wait(next);
  const std::string waited = "allreduce of 'bucket 1' has waited ";
  ExpectOthers(
      next, absl::StatusCode::kDeadlineExceeded,
      {waited, " s for " + Late() + "; nothing has been heard from " + Late(),
       "The job cannot go on"});
  may_go_on.set_value();
  job_->Shutdown();
  ExpectWarning({waited, " s for " + Late()});
}

}  // namespace
}  // namespace tfring
