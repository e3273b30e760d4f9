// Repeated steps that run by a cached schedule, and a shutdown that ends them.
// property_test.cc draws more ways to end a cached schedule.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

constexpr int kBuckets = 4;

// One rank of a training loop.
class Worker {
 public:
  Worker(Engine& engine, int size) : engine_(engine), size_(size) {}

  // Runs a step with dense and sparse gradients.  A bucket waits for the
  // previous one of its name.  Returns false if a rank has shut down.
  bool Step() {
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      if (!Finish(bucket)) return false;
      auto& entry = running_[bucket];
      entries_.push_back(std::make_unique<FloatEntry>(
          "bucket " + std::to_string(bucket),
          std::vector<float>(10, static_cast<float>(engine_.rank() + 1))));
      entry = entries_.back().get();
      if (bucket == 2) entry->request.kind = CollectiveKind::kAllgather;
      entry->SubmitTo(engine_);
    }
    return true;
  }
  bool FinishAll() {
    bool all = true;
    for (int bucket = 0; bucket < kBuckets; ++bucket) all &= Finish(bucket);
    return all;
  }

 private:
  bool Finish(int bucket) {
    FloatEntry* const entry = std::exchange(running_[bucket], nullptr);
    if (entry == nullptr) return true;
    const absl::Status status = entry->outcome.Wait();
    EXPECT_EQ(entry->outcome.calls(), 1);
    if (status.code() == absl::StatusCode::kUnavailable) return false;
    EXPECT_TRUE(status.ok()) << status;
    const auto size = static_cast<float>(size_);
    if (bucket == 2) {
      EXPECT_EQ(entry->result().size(), 10 * size_);
      EXPECT_EQ(entry->result().back(), size);
    } else {
      EXPECT_EQ(entry->result(), std::vector<float>(10, size * (size + 1) / 2));
    }
    return true;
  }

  Engine& engine_;
  const int size_;
  std::vector<std::unique_ptr<FloatEntry>> entries_;  // until the job has ended
  FloatEntry* running_[kBuckets] = {};
};

class RepeatedStepsTest
    : public testing::TestWithParam<std::tuple<int, Medium, int>> {
 protected:
  static int size() { return std::get<0>(GetParam()); }

  static Job MakeJob(int64_t fusion_threshold_bytes = 0) {
    const Medium medium = std::get<Medium>(GetParam());
    Options options = Job::ShortOptions();
    options.fusion_threshold_bytes = fusion_threshold_bytes;
    options.max_progress_peers = std::get<2>(GetParam());
    return Job(MakeTransports(medium, size()), MakeTransports(medium, size()),
               options);
  }
};
INSTANTIATE_TEST_SUITE_P(
    SizeAndMedium, RepeatedStepsTest,
    testing::Combine(testing::Values(1, 2, 3, 5),
                     testing::Values(Medium::kInProcess, Medium::kSharedMemory),
                     testing::Values(32)));
// See progress_tree.h.
INSTANTIATE_TEST_SUITE_P(InATree, RepeatedStepsTest,
                         testing::Values(std::tuple(5, Medium::kInProcess, 1),
                                         std::tuple(6, Medium::kTwoNodes, 1),
                                         std::tuple(12, Medium::kInProcess,
                                                    1)));

TEST_P(RepeatedStepsTest, NeedNoResponseList) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  constexpr int kSteps = 50;
  std::deque<Worker> workers;
  // Some requests share messages, before and after.
  Job job = MakeJob(/*fusion_threshold_bytes=*/64 << 10);
  for (int rank = 0; rank < size(); ++rank) {
    workers.emplace_back(job.engine(rank), size());
  }
  const auto run = [&](int steps) {
    OnThreads(size(), [&](int rank) {
      for (int step = 0; step < steps; ++step) {
        workers[rank].Step();
        workers[rank].FinishAll();
      }
    });
  };
  run(2);
  Timeline::Global().Start(/*mark_responses=*/true);
  run(kSteps);
  int response_lists = 0, agreed = 0;
  for (const Timeline::Event& event : Timeline::Global().Stop().events) {
    if (event.phase == Timeline::Phase::kResponses) ++response_lists;
    if (event.phase == Timeline::Phase::kNegotiate) {
      ++agreed;
      EXPECT_LE(event.begin_ns, event.end_ns);
    }
  }
  EXPECT_EQ(response_lists, 0);
  EXPECT_EQ(agreed, kSteps * kBuckets * size());
  ExpectWorks(job);
  job.Shutdown();
}

TEST_P(RepeatedStepsTest, AShutdownEndsThemWheneverItComes) {
  for (int turn = 0; turn < 8; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    std::deque<Worker> workers;
    Job job = MakeJob();
    for (int rank = 0; rank < size(); ++rank) {
      workers.emplace_back(job.engine(rank), size());
    }
    const int first = turn * 5 % size();
    const int steps = 2 + turn * 7 % 40;
    OnThreads(size(), [&](int rank) {
      bool goes_on = true;
      for (int step = 0; goes_on && (step < steps || rank != first); ++step) {
        goes_on = workers[rank].Step();
        if (turn % 2 == 0) goes_on = workers[rank].FinishAll() && goes_on;
      }
      job.engine(rank).Shutdown();
      workers[rank].FinishAll();
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tfring
