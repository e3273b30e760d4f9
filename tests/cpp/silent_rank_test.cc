// A rank stops in the middle of a transfer.  The remaining ranks name the rank
// and the collective that they wait in, both in a warning and in the final
// error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/gate.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/status_matchers.h"

namespace tfring {
namespace {

// Captures stderr from its construction on; a test may read the text at any
// time.
class CapturedStderr {
 public:
  CapturedStderr()
      : stderr_(dup(STDERR_FILENO)), file_(memfd_create("stderr", 0)) {
    dup2(file_, STDERR_FILENO);
  }
  ~CapturedStderr() {
    dup2(stderr_, STDERR_FILENO);
    close(stderr_);
    close(file_);
  }

  std::string text() const {
    std::string text;
    std::array<char, 4096> part;
    ssize_t count = 0;
    while ((count = pread(file_, part.data(), part.size(),
                          static_cast<off_t>(text.size()))) > 0) {
      text.append(part.data(), static_cast<size_t>(count));
    }
    return text;
  }

  bool Has(const std::string& words) const {
    return text().find(words) != std::string::npos;
  }

 private:
  const int stderr_, file_;
};

class SilentRankTest : public testing::TestWithParam<std::tuple<Medium, int>> {
 protected:
  static constexpr int kSize = 4;

  static Medium medium() { return std::get<Medium>(GetParam()); }
  static int stopped() { return std::get<int>(GetParam()); }

  static Options MakeOptions(double shutdown_seconds) {
    Options options = Job::ShortOptions();
    options.network_segment_bytes = 1000;
    options.allreduce = AllreduceAlgorithm::kRing;
    options.stall_check_seconds = 1;
    options.stall_shutdown_seconds = shutdown_seconds;
    return options;
  }

  void StartJob(double shutdown_seconds) {
    auto gated = [&](bool is_data) {
      // The long timeout is for machines on which many polls take long.
      auto transports = MakeTransports(medium(), kSize, kSmallRingBytes,
                                       /*timeout_seconds=*/300);
      auto& one = transports[stopped()];
      one = std::make_unique<GatedTransport>(std::move(one), gate_, is_data);
      return transports;
    };
    auto second = gated(true);
    job_ = std::make_unique<Job>(
        gated(false), gated(true), MakeOptions(shutdown_seconds),
        [&](int rank, ProcessSet& set) {
          set.make_data = [&, rank] { return std::move(second[rank]); };
          set.clock = &clocks_.of(rank);
        });
    ExpectWorks(*job_);
  }

  void StopInTheMiddle() {
    gate_.CloseAfter(20);
    job_->Submit(entries_);
    gate_.WaitUntilClosed();
    clocks_.AwaitLooks(others());
  }

  // Advances the clock in steps that are too short to be taken for sleep.
  template <typename Condition>
  void AdvanceUntil(const std::vector<int>& ranks, const Condition& happened) {
    EXPECT_TRUE(clocks_.Advance(std::chrono::seconds(30),
                                std::chrono::milliseconds(300), ranks,
                                happened));
  }

  static std::vector<int> others() { return RanksBut(stopped(), kSize); }

  static std::string Warning(int rank) {
    return "warning on rank " + std::to_string(rank) +
           ": allreduce of 'kernel' has waited ";
  }
  static std::string Silence() {
    return "; nothing has been heard from rank " + std::to_string(stopped());
  }

  Gate gate_;
  RankClocks clocks_{kSize};
  const Entries entries_ = MakeEntries(kSize, "kernel", 300'000);
  std::unique_ptr<Job> job_;
};
// In the last case a worker drives the transport.
INSTANTIATE_TEST_SUITE_P(MediumAndRank, SilentRankTest,
                         testing::Values(std::tuple(Medium::kInProcess, 2),
                                         std::tuple(Medium::kSharedMemory, 0),
                                         std::tuple(Medium::kTwoNodes, 0),
                                         std::tuple(Medium::kTwoNodes, 2)));

TEST_P(SilentRankTest, IsNamedByAllAndGivenUpWithOneMessage) {
  StartJob(/*shutdown_seconds=*/3);
  const CapturedStderr captured;
  StopInTheMiddle();
  AdvanceUntil(others(), [&] { return entries_[1]->outcome.calls() > 0; });
  const absl::Status first = entries_[1]->outcome.Wait();
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded);
  for (const std::string& part :
       {std::string("allreduce of 'kernel' has waited "), Silence(),
        std::string("The job cannot go on without it.")}) {
    EXPECT_THAT(first, HasMessage(part));
  }
  for (const int rank : others()) {
    EXPECT_EQ(entries_[rank]->outcome.Wait().message(), first.message());
  }
  gate_.Open();
  job_->Shutdown();
  EXPECT_EQ(entries_[stopped()]->outcome.Wait().message(), first.message());
  const std::string said = captured.text();
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(said.find(Warning(rank)) != std::string::npos, rank != stopped())
        << said;
  }
  // The stopped rank is reported as silent, and no other rank is.
  for (int rank = 0; rank < kSize; ++rank) {
    const std::string blame =
        "nothing has been heard from rank " + std::to_string(rank);
    EXPECT_EQ(said.find(blame) != std::string::npos, rank == stopped()) << said;
  }
}

TEST_P(SilentRankTest, MayGoOnAndSoDoesTheJob) {
  StartJob(/*shutdown_seconds=*/60);
  const CapturedStderr captured;
  StopInTheMiddle();
  const auto all_say = [&](const auto& words) {
    return [&] {
      for (const int rank : others()) {
        if (!captured.Has(words(rank))) return false;
      }
      return true;
    };
  };
  AdvanceUntil(others(), all_say(Warning));
  gate_.Open();
  ExpectSums(entries_);
  const auto again = [](int rank) {
    return "warning on rank " + std::to_string(rank) + ": rank " +
           std::to_string(stopped()) + " is heard again.";
  };
  AdvanceUntil({0, 1, 2, 3}, all_say(again));
  ExpectWorks(*job_);
  job_->Shutdown();
}

}  // namespace
}  // namespace tfring
