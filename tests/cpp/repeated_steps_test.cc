// Steps that repeat, which are agreed by a cached schedule, and all that ends a
// cached schedule: ranks that ask for something else, or for nothing, that
// join or shut down.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

using Random = std::mt19937;

int Below(Random& random, int end) {
  // Unlike <random>'s distributions, the same everywhere.
  return static_cast<int>(random() % static_cast<unsigned>(end));
}

// One rank of a training loop.
class Worker {
 public:
  Worker(Engine& engine, unsigned seed)
      : engine_(engine), random_(seed * 31 + engine.rank()) {}

  // In place, of floats that are different at each call.  Waits for the last
  // one of that name.
  FloatEntry& Start(const std::string& name, size_t count = 10,
                    CollectiveKind kind = CollectiveKind::kAllreduce) {
    Finish(name);
    if (Below(random_, 8) == 0) std::this_thread::yield();
    if (Below(random_, 500) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    const int start = ++starts_[name];
    const auto scale = static_cast<float>(start % 100);
    if (kind == CollectiveKind::kAllgather) {
      count = RowsOf(engine_.rank(), start);
    }
    auto entry = std::make_unique<FloatEntry>(
        name, std::vector<float>(
                  count, scale * static_cast<float>(engine_.rank() + 1)));
    entry->request.kind = kind;
    if (kind == CollectiveKind::kJoin) entry->request.tensors.clear();
    entry->SubmitTo(engine_);
    Running& running = running_[name];
    running = {entry.get(), ExpectedOf(kind, count, start),
               absl::StatusCode::kOk};
    entries_.push_back(std::move(entry));
    return *running.entry;
  }
  void ExpectFailure(const std::string& name, absl::StatusCode code) {
    running_[name].code = code;
  }

  void Finish(const std::string& name) {
    const auto found = running_.find(name);
    if (found == running_.end()) return;
    const Running running = found->second;
    running_.erase(found);
    const absl::Status status = running.entry->outcome.Wait();
    EXPECT_EQ(running.entry->outcome.calls(), 1);
    if (ended_ || status.code() == absl::StatusCode::kUnavailable) {
      ended_ = true;
      return;
    }
    EXPECT_EQ(status.code(), running.code) << name << ": " << status;
    if (status.ok()) {
      EXPECT_EQ(running.entry->result(), running.expected)
          << name << ", start " << starts_[name];
    }
  }
  void FinishAll() {
    while (!running_.empty()) {
      Finish(std::string(running_.begin()->first));
    }
  }

  // Others have started it, that often.
  void Skip(const std::string& name, int times) { starts_[name] += times; }

  // Those that do not join.
  void SetContributors(std::vector<int> ranks) {
    contributors_ = std::move(ranks);
  }
  // Somebody has shut down.
  bool ended() const { return ended_; }
  Random& random() { return random_; }

 private:
  struct Running {
    FloatEntry* entry;
    std::vector<float> expected;
    absl::StatusCode code;
  };

  // Of an allgather: at times the same as at the start before.
  static size_t RowsOf(int rank, int start) {
    return (rank * 5 + start / 3) % 4;
  }

  std::vector<float> ExpectedOf(CollectiveKind kind, size_t count,
                                int start) const {
    std::vector<float> expected;
    const auto scale = static_cast<float>(start % 100);
    float sum = 0;
    for (const int rank : contributors_) {
      const float of_rank = scale * static_cast<float>(rank + 1);
      sum += of_rank;
      if (kind == CollectiveKind::kAllgather) {
        expected.insert(expected.end(), RowsOf(rank, start), of_rank);
      }
    }
    if (kind == CollectiveKind::kAllreduce) expected.assign(count, sum);
    return expected;
  }

  Engine& engine_;
  Random random_;
  std::vector<std::unique_ptr<FloatEntry>> entries_;  // until the job has ended
  std::unordered_map<std::string, Running> running_;
  std::unordered_map<std::string, int> starts_;
  std::vector<int> contributors_;
  bool ended_ = false;
};

std::string BucketName(int bucket) {
  return "bucket " + std::to_string(bucket);
}

// As in a step with gradients of which some are sparse.
CollectiveKind KindOf(int bucket) {
  return bucket == 2 ? CollectiveKind::kAllgather : CollectiveKind::kAllreduce;
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The steps of all ranks, drawn from one seed; each rank takes its own time.
class Script {
 public:
  Script(Worker& worker, int rank, int size, unsigned seed)
      : worker_(worker), rank_(rank), size_(size), random_(seed) {
    worker_.SetContributors(RanksBut(-1));
  }

  void Run(int steps) {
    for (int step = 0; step < steps && !worker_.ended(); ++step) {
      ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
      const std::string extra = "extra " + std::to_string(step);
      switch (Below(random_, 140)) {
        case 0:
          buckets_ = 1 + Below(random_, 5);
          break;
        case 1:
          AnotherBetween(extra, CollectiveKind::kAllreduce);
          break;
        case 2:
          AnotherBetween(extra, CollectiveKind::kAllgather);
          break;
        case 3:
          AnotherAnywhere(extra);
          break;
        case 4:
          InAnyOrder();
          break;
        case 5:
          Mismatch();
          break;
        case 6:
          Join();
          break;
        default:
          Step(0, buckets_);
          // Or the ranks may be up to a step apart.
          if (Below(random_, 2) == 0) worker_.FinishAll();
      }
    }
    worker_.FinishAll();
  }

 private:
  std::vector<int> RanksBut(int joined) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != joined) ranks.push_back(rank);
    }
    return ranks;
  }

  void Step(int begin, int end) {
    for (int i = begin; i < end; ++i) {
      worker_.Start(BucketName(i), i == 1 ? 3000 : 10, KindOf(i));
    }
  }

  void AnotherBetween(const std::string& name, CollectiveKind kind) {
    const int at = Below(random_, buckets_ + 1);
    Step(0, at);
    worker_.Start(name, 10, kind);
    worker_.Finish(name);
    Step(at, buckets_);
  }

  void AnotherAnywhere(const std::string& name) {
    const int at = Below(worker_.random(), buckets_ + 1);
    Step(0, at);
    worker_.Start(name);
    Step(at, buckets_);
    worker_.Finish(name);
  }

  void InAnyOrder() {
    worker_.FinishAll();
    std::vector<int> order(buckets_);
    for (int i = 0; i < buckets_; ++i) order[i] = i;
    for (int i = buckets_; i > 1; --i) {
      std::swap(order[i - 1], order[Below(worker_.random(), i)]);
    }
    for (const int i : order) Step(i, i + 1);
    worker_.FinishAll();
  }

  void Mismatch() {
    const int wrong_rank = Below(random_, size_);
    const int at = Below(random_, buckets_);
    Step(0, at);
    worker_.Start(BucketName(at), rank_ == wrong_rank ? 20 : 30);
    if (size_ > 1) {
      worker_.ExpectFailure(BucketName(at),
                            absl::StatusCode::kFailedPrecondition);
    }
    Step(at + 1, buckets_);
  }

  void Join() {
    worker_.FinishAll();
    // Rank 0 after no step, or rank 1, ...
    const int first = Below(random_, size_);
    const int steps = Below(random_, 8);
    if (rank_ == first) {
      worker_.Start("join", 0, CollectiveKind::kJoin);
      for (int i = 0; i < buckets_; ++i) worker_.Skip(BucketName(i), steps);
    } else {
      worker_.SetContributors(RanksBut(first));
      for (int step = 0; step < steps; ++step) {
        Step(0, buckets_);
        worker_.FinishAll();
      }
      worker_.Start("join", 0, CollectiveKind::kJoin);
    }
    worker_.Finish("join");
    worker_.SetContributors(RanksBut(-1));
  }

  Worker& worker_;
  const int rank_, size_;
  Random random_;
  int buckets_ = 4;
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
  constexpr int kBuckets = 5, kSteps = 50;
  // Some requests share messages, before and after.
  std::vector<std::unique_ptr<Worker>> workers(size());
  Job job = MakeJob(/*fusion_threshold_bytes=*/64 << 10);
  const auto run = [&](int steps) {
    OnThreads(size(), [&](int rank) {
      if (!workers[rank]) {
        workers[rank] = std::make_unique<Worker>(job.engine(rank), 0);
        workers[rank]->SetContributors(AllRanks(size()));
      }
      for (int step = 0; step < steps; ++step) {
        for (int i = 0; i < kBuckets; ++i) {
          workers[rank]->Start(BucketName(i), 10, KindOf(i));
        }
        workers[rank]->FinishAll();
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

TEST_P(RepeatedStepsTest, MayBeFollowedByAnything) {
  constexpr int kSteps = 200;
  for (unsigned seed = 0; seed < 2; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<std::unique_ptr<Worker>> workers(size());
    Job job = MakeJob(seed * (64 << 10));
    OnThreads(size(), [&](int rank) {
      workers[rank] = std::make_unique<Worker>(job.engine(rank), seed);
      Script(*workers[rank], rank, size(), seed).Run(kSteps);
    });
    job.Shutdown();
    if (HasFailure()) return;
  }
}

TEST_P(RepeatedStepsTest, AShutdownEndsThemWheneverItComes) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::vector<std::unique_ptr<Worker>> workers(size());
    Job job = MakeJob();
    Random random(seed);
    const int first = Below(random, size());
    const int steps = 2 + Below(random, 40);
    OnThreads(size(), [&](int rank) {
      workers[rank] = std::make_unique<Worker>(job.engine(rank), seed);
      Worker& worker = *workers[rank];
      worker.SetContributors(AllRanks(size()));
      for (int step = 0; step < steps || rank != first; ++step) {
        for (int i = 0; i < 4; ++i) {
          worker.Start(BucketName(i), 10, KindOf(i));
        }
        if (seed % 2 == 0) worker.FinishAll();
        if (worker.ended()) break;
      }
      job.engine(rank).Shutdown();
      worker.FinishAll();
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tfring
