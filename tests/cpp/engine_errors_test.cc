// Errors that every rank receives, after which the job goes on; ranks that are
// late; and the end.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/send_counter.h"

namespace tfring {
namespace {

constexpr int kSize = 3;

testing::AssertionResult Contains(absl::string_view text,
                                  absl::string_view part) {
  if (text.find(part) != absl::string_view::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "no '" << part << "' in: " << text;
}

// ---- Mismatches ----

struct Mismatch {
  const char* text;
  std::function<void(CollectiveRequest&)> change;
  CollectiveKind kind = CollectiveKind::kAllreduce;
};

TEST(EngineMismatchTest, EveryRankGetsTheTextAndTheJobGoesOn) {
  const Mismatch mismatches[] = {
      {"collectives differ. Rank 0 sent allreduce; rank 2 sent broadcast",
       [](auto& request) { request.kind = CollectiveKind::kBroadcast; }},
      {"dtypes differ. Rank 0 sent float32; rank 2 sent int32",
       [](auto& request) { request.dtype = DataType::kInt32; }},
      {"dtypes on the wire differ. Rank 0 sent float32; rank 2 sent bfloat16",
       [](auto& request) { request.wire_dtype = DataType::kBfloat16; }},
      {"shapes differ. Rank 0 sent float32 (8,); rank 2 sent float32 (2, 4)",
       [](auto& request) { request.tensors[0].dims = {2, 4}; }},
      {"numbers of tensors differ. Rank 0 sent 1 tensor, 'bias'; rank 2 sent "
       "2 tensors, 'bias' to 'kernel'",
       [](auto& request) { request.tensors.push_back({"kernel", {8}}); }},
      {"tensors differ. Rank 0 sent 'bias'; rank 2 sent 'kernel'",
       [](auto& request) { request.tensors[0].name = "kernel"; }},
      {"ops differ. Rank 0 sent sum; rank 2 sent average",
       [](auto& request) { request.op = ReduceOp::kAverage; }},
      {"factors differ. Rank 0 sent prescale 1, postscale 1; rank 2 sent "
       "prescale 3, postscale 1",
       [](auto& request) { request.prescale_factor = 3; }},
      {"root ranks differ. Rank 0 sent 0; rank 2 sent 1",
       [](auto& request) { request.root_rank = 1; },
       CollectiveKind::kBroadcast},
      {"shapes differ. Rank 0 sent float32 (8,); rank 2 sent float32 (8, 1)",
       [](auto& request) { request.tensors[0].dims = {8, 1}; },
       CollectiveKind::kAllgather},
      {"shapes differ. Rank 0 sent float32 (8,); rank 2 sent float32 (8, 1)",
       [](auto& request) { request.tensors[0].dims = {8, 1}; },
       CollectiveKind::kAlltoall},
      {"shapes differ. Rank 0 sent float32 (8,); rank 2 sent float32 (7,)",
       [](auto& request) { request.tensors[0].dims = {7}; },
       CollectiveKind::kReduceScatter},
      {"collectives differ. Rank 0 sent allreduce; rank 2 sent barrier",
       [](auto& request) {
         request.kind = CollectiveKind::kBarrier;
         request.tensors.clear();
       }},
  };
  Job job(kSize);
  for (const Mismatch& mismatch : mismatches) {
    const Entries entries = MakeEntries(kSize, "bias", 8);
    for (const auto& entry : entries) entry->request.kind = mismatch.kind;
    mismatch.change(entries[2]->request);
    // Rank 2's request comes last, and so is the one found to differ.
    entries[0]->SubmitTo(job.engine(0));
    ExpectWorks(job);
    entries[1]->SubmitTo(job.engine(1));
    ExpectWorks(job);
    entries[2]->SubmitTo(job.engine(2));
    for (const auto& entry : entries) {
      const absl::Status status = entry->outcome.Wait();
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_TRUE(Contains(status.message(), mismatch.text));
      EXPECT_TRUE(Contains(status.message(), "of 'bias'"));
    }
    ExpectWorks(job, "bias");
    for (const auto& entry : entries) EXPECT_EQ(entry->outcome.calls(), 1);
  }
}

TEST(EngineMismatchTest, ANameInFlightIsRefused) {
  Job job(2);
  const Entries first = MakeEntries(2, "twice", 4);
  FloatEntry second("twice", {5});
  first[0]->SubmitTo(job.engine(0));
  second.SubmitTo(job.engine(0));
  EXPECT_EQ(second.outcome.calls(), 1);
  const absl::Status status = second.outcome.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Contains(status.message(), "allreduce of 'twice'"));
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
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank != missing) entries[rank]->SubmitTo(job.engine(rank));
  }
  ExpectWorks(job);  // meanwhile
  clocks.Advance(
      std::chrono::seconds(5), std::chrono::milliseconds(20), {0, 1, 2},
      [&] { return entries[(missing + 1) % kSize]->outcome.calls() > 0; });
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == missing) continue;
    const absl::Status status = entries[rank]->outcome.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Contains(status.message(), "allreduce of 'late' has waited"));
    EXPECT_TRUE(Contains(status.message(), waited));
  }
  const std::string reports = testing::internal::GetCapturedStderr();
  for (int rank = 0; rank < kSize; ++rank) {
    const std::string from = "warning on rank " + std::to_string(rank) +
                             ": allreduce of 'late' has waited 0 " + waited;
    EXPECT_EQ(static_cast<bool>(Contains(reports, from)), rank != missing)
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
    const absl::Status status = entry.outcome.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(Contains(status.message(),
                         "rank " + std::to_string(left) + " has shut down"));
    EXPECT_EQ(entry.outcome.calls(), 1);
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

TEST_P(EngineShutdownTest, MayBeAskedForTwiceAndFromTwoThreads) {
  Job job(kSize);
  OnThreads(2, [&](int) { job.engine(GetParam()).Shutdown(); });
  job.Shutdown();
  job.Shutdown();
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
        set.control =
            std::make_unique<SendCounter>(std::move(set.control), sends);
      },
      options);
  // The coordinator answers nobody while it is held up in `done`.
  std::promise<void> held, release;
  TensorEntry entry;
  entry.request = hold[0]->request;
  std::vector<float> data(4);
  entry.buffers = {{data.data(), data.data()}};
  entry.done = [&](const absl::Status&) {
    held.set_value();
    release.get_future().wait();
  };
  job.engine(0).Submit(std::move(entry));
  for (const int rank : {1, 2}) hold[rank]->SubmitTo(job.engine(rank));
  held.get_future().wait();

  const int before = sends;
  std::thread leaver([&] { job.engine(leaving).Shutdown(); });
  // The coordinator asks nobody.
  EXPECT_TRUE(leaving == 0 || Await([&] { return sends > before; }));
  late[leaving]->SubmitTo(job.engine(leaving));
  release.set_value();
  leaver.join();
  job.Shutdown();
  ExpectShutdownError(*late[leaving], leaving);
}

TEST_P(EngineShutdownTest, LeavesNoEntryUndone) {
  constexpr int kCount = 300;
  const int leaving = GetParam();
  Job job(kSize);
  std::vector<Entries> all;
  for (int i = 0; i < kCount; ++i) {
    all.push_back(MakeEntries(kSize, "t" + std::to_string(i), 10));
  }
  std::atomic<bool> halfway{false};
  std::thread leaver([&] {
    while (!halfway) std::this_thread::yield();
    job.engine(leaving).Shutdown();
  });
  OnThreads(kSize, [&](int rank) {
    for (int i = 0; i < kCount; ++i) {
      if (i == kCount / 2) halfway = true;
      all[i][rank]->SubmitTo(job.engine(rank));
    }
  });
  leaver.join();
  for (const Entries& entries : all) {
    for (const auto& entry : entries) {
      if (entry->outcome.Wait().ok()) {
        EXPECT_EQ(entry->result(), std::vector<float>(10, 6));
      } else {
        ExpectShutdownError(*entry, leaving);
      }
    }
  }
  job.Shutdown();
  for (const Entries& entries : all) {
    for (const auto& entry : entries) EXPECT_EQ(entry->outcome.calls(), 1);
  }
}

TEST(EngineEndTest, ADestructorShutsDown) {
  const Entries entries = MakeEntries(kSize, "waiting", 4);
  {
    Job job(kSize);
    entries[1]->SubmitTo(job.engine(1));
  }
  EXPECT_EQ(entries[1]->outcome.calls(), 1);
  EXPECT_EQ(entries[1]->outcome.Wait().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tfring
