// A transport fails at its k-th operation, for every k: no entry is left
// undone, none is done twice, and nothing hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/faulty_transport.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/idle_watch.h"
#include "tfring_ops/transport/forwarding.h"

namespace tfring {
namespace {

constexpr int kSize = 3;
// kSecondData: between nodes, where there are several for data.
enum class Channel { kControl, kData, kSecondData };

class EngineFaultTest
    : public testing::TestWithParam<std::tuple<Channel, int, Medium>> {
 protected:
  // Every kind of collective; the first of them in several segments.
  static std::vector<Entries> MakeWork() {
    std::vector<Entries> work;
    work.push_back(MakeEntries(kSize, "long", 1500));
    work.push_back(
        MakeEntries(kSize, "gather", 10, CollectiveKind::kAllgather));
    work.push_back(
        MakeEntries(kSize, "broadcast", 400, CollectiveKind::kBroadcast));
    for (const auto& entry : work.back()) entry->request.root_rank = 1;
    work.push_back(
        MakeEntries(kSize, "scatter", 1000, CollectiveKind::kReduceScatter));
    work.push_back(
        MakeEntries(kSize, "alltoall", 600, CollectiveKind::kAlltoall));
    for (const auto& entry : work.back()) entry->request.splits = {300, 0, 300};
    work.push_back(MakeEntries(kSize, "short", 10));
    if (std::get<Medium>(GetParam()) == Medium::kTwoNodes) {
      // Two of these are on the wire at once, each by a worker of its own.
      for (const char* name : {"one", "two", "three"}) {
        work.push_back(MakeEntries(kSize, name, 20'000));
      }
    }
    return work;
  }

  static Job MakeFaultyJob(int64_t failing_operation,
                           AllreduceAlgorithm allreduce) {
    const auto [channel, rank, medium] = GetParam();
    auto control = MakeTransports(medium, kSize);
    auto data = MakeTransports(medium, kSize);
    auto second = MakeTransports(medium, kSize);
    auto& faulty = channel == Channel::kControl ? control[rank]
                   : channel == Channel::kData  ? data[rank]
                                                : second[rank];
    faulty = MakeFaultyTransport(std::move(faulty), failing_operation);
    Options options = Job::ShortOptions();
    options.allreduce = allreduce;
    return Job(std::move(control), std::move(data), options,
               [&](int rank, ProcessSet& set) {
                 set.make_data = [&, rank] { return std::move(second[rank]); };
               });
  }

  // Returns true if anything failed that was not asked to end.
  static bool Run(int64_t failing_operation, AllreduceAlgorithm allreduce) {
    // Outlives the job, which holds its memory.
    const std::vector<Entries> work = MakeWork();
    const std::vector<Entries> after = MakeWork();
    Job job = MakeFaultyJob(failing_operation, allreduce);
    bool failed = false;
    for (int rank = 0; rank < kSize; ++rank) {
      if (job.started(rank).ok()) {
        for (const Entries& entries : work) {
          entries[rank]->SubmitTo(job.engine(rank));
        }
      } else {
        EXPECT_EQ(job.started(rank).code(), absl::StatusCode::kUnavailable);
        failed = true;
      }
    }
    for (int rank = 0; rank < kSize; ++rank) {
      if (!job.started(rank).ok()) continue;
      for (const Entries& entries : work) {
        const absl::Status status = entries[rank]->outcome.Wait();
        if (status.ok()) continue;
        failed = true;
        EXPECT_EQ(job.engine(rank).ended(), status);
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      }
    }
    if (failed) ExpectEveryRankFails(job, after);
    job.Shutdown();
    for (int rank = 0; rank < kSize; ++rank) {
      for (const Entries& entries : work) {
        EXPECT_EQ(entries[rank]->outcome.calls(), job.started(rank).ok());
      }
    }
    return failed;
  }

  // Expects every later entry to fail, all with the same message.
  static void ExpectEveryRankFails(Job& job,
                                   const std::vector<Entries>& entries) {
    for (int rank = 0; rank < kSize; ++rank) {
      if (!job.started(rank).ok()) continue;
      absl::Status first;
      for (const Entries& more : entries) {
        more[rank]->SubmitTo(job.engine(rank));
        // Only the first entry of a rank may have to wait for the failure.
        if (!first.ok()) {
          EXPECT_EQ(more[rank]->outcome.calls(), 1);
        }
        const absl::Status status = more[rank]->outcome.Wait();
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
        if (first.ok()) first = status;
        EXPECT_EQ(status, first);
      }
    }
  }

  // Makes each operation fail in turn, until several failures in a row have had
  // no effect.  An entry may succeed although a later operation fails, and the
  // operations of the shutdown fail no entry.
  template <typename RunWith>
  static void ForEveryOperation(const RunWith& fails) {
    constexpr int kEnough = 16;
    int failures = 0, successes = 0;
    for (int64_t k = 1; successes < kEnough; ++k) {
      SCOPED_TRACE(testing::Message() << "operation " << k << " fails");
      const bool failed = fails(k);
      failures += failed;
      successes = failed ? 0 : successes + 1;
      if (HasFailure()) return;
    }
    EXPECT_GE(failures, 5);
  }
};
INSTANTIATE_TEST_SUITE_P(
    ChannelRankAndMedium, EngineFaultTest,
    testing::Combine(testing::Values(Channel::kControl, Channel::kData),
                     testing::Values(0, kSize - 1),
                     testing::Values(Medium::kInProcess,
                                     Medium::kSharedMemory)));
INSTANTIATE_TEST_SUITE_P(BetweenNodes, EngineFaultTest,
                         testing::Combine(testing::Values(Channel::kData,
                                                          Channel::kSecondData),
                                          testing::Values(kSize - 1),
                                          testing::Values(Medium::kTwoNodes)));

TEST_P(EngineFaultTest, ReachesEveryEntryOnce) {
  ForEveryOperation(
      [](int64_t k) { return Run(k, AllreduceAlgorithm::kRing); });
}

// Here the control channel begins, uses and ends a cached schedule.
TEST_P(EngineFaultTest, ReachesEveryEntryOfRepeatedSteps) {
  ForEveryOperation([](int64_t k) {
    std::vector<Entries> work;
    for (const char* const name :
         {"a", "b", "a", "b", "a", "b", "a", "b", "c", "a"}) {
      work.push_back(MakeEntries(kSize, name, 10));
    }
    Job job = MakeFaultyJob(k, AllreduceAlgorithm::kRing);
    bool failed = false;
    for (const Entries& entries : work) {
      for (int rank = 0; rank < kSize; ++rank) {
        if (job.started(rank).ok()) entries[rank]->SubmitTo(job.engine(rank));
      }
      for (int rank = 0; rank < kSize; ++rank) {
        absl::Status status = job.started(rank);
        if (status.ok()) {
          status = entries[rank]->outcome.Wait();
          EXPECT_EQ(entries[rank]->outcome.calls(), 1);
        }
        failed = failed || !status.ok();
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
      }
    }
    job.Shutdown();
    return failed;
  });
}

TEST_P(EngineFaultTest, MayComeWhileCostsAreMeasured) {
  const bool failed = Run(/*failing_operation=*/20, AllreduceAlgorithm::kAuto);
  // The costs are measured on the first data channel.
  EXPECT_TRUE(failed || std::get<Channel>(GetParam()) != Channel::kData);
}

// Looks for a lost rank only when it is asked to make progress.  Other
// transports also look now and then.
class LateToNotice final : public ForwardingTransport {
 public:
  LateToNotice(std::unique_ptr<Transport> inner, const std::atomic<bool>& lost)
      : ForwardingTransport(std::move(inner)), lost_(lost) {}
  absl::Status Progress() override {
    return lost_ ? absl::UnavailableError("a rank is lost")
                 : ForwardingTransport::Progress();
  }

 private:
  const std::atomic<bool>& lost_;
};

// The engine has its own thread, or until it is used an IdleWatch.
TEST(IdleEngineTest, SeesThatARankIsLost) {
  for (const bool has_watch : {false, true}) {
    std::atomic<bool> lost{false};
    IdleWatch watch;
    Job job(2, [&](int, ProcessSet& process_set) {
      process_set.control =
          std::make_unique<LateToNotice>(std::move(process_set.control), lost);
      if (has_watch) process_set.idle_watch = &watch;
    });
    lost = true;
    for (int rank = 0; rank < job.size(); ++rank) {
      EXPECT_TRUE(Await([&] { return !job.engine(rank).ended().ok(); }));
      EXPECT_EQ(job.engine(rank).ended(),
                absl::UnavailableError("a rank is lost"));
    }
  }
}

}  // namespace
}  // namespace tfring
