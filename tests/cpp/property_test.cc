// Schedules made at random: collectives of all kinds, types and sizes, in an
// order of each rank's own, that repeat, that run beside those of a process
// set, while some ranks have joined, and with something that fails on one rank.
// In each of them, a result is right to the bit, or there is an error; there is
// none unless something was made to fail, and then the whole job ends; and
// nothing takes for ever.
//
// TFRING_PROPERTY_SCHEDULES says how many, TFRING_PROPERTY_SEED which is the
// first: a failure names the seed that shows it again.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/faulty_transport.h"
#include "tests/cpp/random_collectives.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/idle_watch.h"

namespace tfring {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// The operation that is made to fail, once in a schedule.
enum class Fault { kNone, kTransport, kStart, kAllocation };

class Schedule {
 public:
  explicit Schedule(unsigned seed)
      : random_(seed),
        size_(2 + static_cast<int>(Below(random_, 3))),
        fault_(OneOf(random_, kFaults)),
        faulty_rank_(static_cast<int>(Below(random_, size_))) {}

  void Run() {
    MakeJobs();
    const int64_t phases = 1 + Below(random_, 3);
    for (int64_t phase = 0; phase < phases && !Stops(); ++phase) {
      RunPhase("phase " + std::to_string(phase));
    }
    if (!Stops() && fault_ == Fault::kNone) {
      // Nothing that came before has left anything behind.
      ExpectWorks(*job_);
    }
    if (failed_) ExpectEnded();
    job_->Shutdown();
    if (subset_) subset_->Shutdown();
  }

  bool failed() const { return failed_; }

 private:
  static constexpr Fault kFaults[] = {Fault::kNone, Fault::kNone,
                                      Fault::kTransport, Fault::kStart,
                                      Fault::kAllocation};
  using Batch = std::vector<RandomCollective>;

  bool Stops() const { return failed_ || testing::Test::HasFailure(); }

  void MakeJobs() {
    constexpr Medium kMedia[] = {Medium::kInProcess,  Medium::kSharedMemory,
                                 Medium::kNodesOfTwo, Medium::kTwoNodes,
                                 Medium::kTwoNodes,   Medium::kTcp,
                                 Medium::kTcpLater};
    constexpr AllreduceAlgorithm kAlgorithms[] = {AllreduceAlgorithm::kRing,
                                                  AllreduceAlgorithm::kAuto};
    const Medium medium = OneOf(random_, kMedia);
    Options options;
    options.fusion_threshold_bytes = Below(random_, 2) * (64 << 10);
    options.segment_bytes = options.network_segment_bytes =
        1000 + 1000 * Below(random_, 4);
    options.buckets_in_flight = 1 + Below(random_, 3);
    options.allreduce = OneOf(random_, kAlgorithms);
    std::vector<Job::Transports> channels;
    for (int i = 0; i < 4; ++i) {
      channels.push_back(
          MakeTransports(i == 0 ? ControlBeside(medium) : medium, size_));
    }
    if (fault_ == Fault::kTransport) {
      auto& faulty = channels[Below(random_, 4)][faulty_rank_];
      faulty = MakeFaultyTransport(std::move(faulty), 1 + Below(random_, 2000));
    }
    job_ = std::make_unique<Job>(
        std::move(channels[0]), std::move(channels[1]), options, /*id=*/0,
        /*world_ranks=*/std::vector<int32_t>{}, /*on_lost=*/nullptr,
        [&](int rank, ProcessSet& set) {
          set.make_data = [&channels, rank, next = 2]() mutable {
            return std::move(channels[next++][rank]);
          };
        });
    for (int rank = 0; rank < size_; ++rank) {
      failed_ = failed_ || !job_->started(rank).ok();
    }
    if (size_ > 2 && Below(random_, 3) == 0) {
      for (int32_t rank = 1; rank < size_; ++rank) {
        subset_ranks_.push_back(rank);
      }
      subset_ = std::make_unique<Job>(
          MakeTransports(ControlBeside(medium), size_ - 1),
          MakeTransports(medium, size_ - 1), options, /*id=*/1, subset_ranks_,
          /*on_lost=*/nullptr,
          [this](int, ProcessSet& set) { set.idle_watch = &idle_watch_; });
    }
  }

  // Some collectives, maybe more than once, maybe with some ranks that have
  // joined.
  void RunPhase(const std::string& name) {
    // The first ranks go on, as the sums of those are known.
    const int contributors = Below(random_, 3) == 0
                                 ? 1 + static_cast<int>(Below(random_, size_))
                                 : size_;
    const bool joins = contributors < size_;
    std::deque<FloatEntry>& join = joins_.emplace_back();
    for (int rank = 0; rank < size_; ++rank) {
      FloatEntry& entry = join.emplace_back("join", std::vector<float>());
      entry.request.kind = CollectiveKind::kJoin;
      entry.request.tensors.clear();
    }
    for (int rank = contributors; rank < size_; ++rank) {
      join[rank].SubmitTo(job_->engine(rank));
    }
    Batch batch = MakeBatch(name, contributors, joins);
    Batch of_subset;
    if (subset_) {
      of_subset = MakeBatch(name, subset_->size(), /*joins=*/false);
      for (RandomCollective& collective : of_subset) {
        for (RandomCollective::Part& part : collective.of_rank) {
          part.request.root_rank = subset_ranks_[part.request.root_rank];
        }
      }
    }
    const int64_t times = Below(random_, 2) == 0 ? 1 : 1 + Below(random_, 12);
    is_orderly_ = Below(random_, 2) == 0;
    for (int64_t time = 0; time < times && !Stops(); ++time) {
      if (Below(random_, 2) == 0) Vary(batch);
      if (Below(random_, 2) == 0) Vary(of_subset);
      const auto mine = Submit(*job_, batch, /*may_fail=*/true);
      const auto others = subset_
                              ? Submit(*subset_, of_subset, /*may_fail=*/false)
                              : std::vector<Running*>();
      for (Running* one : mine) Take(one->request(), one->CheckIfOk());
      for (Running* one : others) one->Check();
    }
    if (!joins || Stops()) return;
    for (int rank = 0; rank < contributors; ++rank) {
      join[rank].SubmitTo(job_->engine(rank));
    }
    for (FloatEntry& entry : join) Take(entry.request, entry.outcome.Wait());
  }

  // `joins`: of those that run without all ranks.
  Batch MakeBatch(const std::string& name, int size, bool joins) {
    Maker maker(random_, size);
    Batch batch;
    const int64_t count = 1 + Below(random_, 8);
    while (static_cast<int64_t>(batch.size()) < count) {
      RandomCollective one =
          maker.Make(name + ", " + std::to_string(batch.size()));
      const CollectiveRequest& request = one.of_rank[0].request;
      const bool needs_all = request.kind == CollectiveKind::kReduceScatter ||
                             request.kind == CollectiveKind::kScatterInPlace ||
                             request.kind == CollectiveKind::kGatherInPlace ||
                             request.kind == CollectiveKind::kAlltoall;
      if (joins && needs_all) continue;
      if (Below(random_, 2) == 0) Scale(one);
      batch.push_back(std::move(one));
    }
    return batch;
  }

  void Vary(Batch& batch) {
    for (RandomCollective& collective : batch) {
      Maker maker(random_, static_cast<int>(collective.of_rank.size()));
      maker.Vary(collective);
    }
  }

  // By factors that cancel, where that is exact.
  static void Scale(RandomCollective& collective) {
    const CollectiveRequest& request = collective.of_rank[0].request;
    if (request.kind != CollectiveKind::kAllreduce ||
        (request.dtype != DataType::kFloat32 &&
         request.dtype != DataType::kFloat64) ||
        request.op == ReduceOp::kProduct) {
      return;
    }
    for (RandomCollective::Part& part : collective.of_rank) {
      part.request.prescale_factor = 0.5;
      part.request.postscale_factor = 2;
    }
  }

  std::vector<Running*> Submit(Job& job, const Batch& batch, bool may_fail) {
    std::vector<std::vector<Running*>> of_rank(batch[0].of_rank.size());
    std::vector<Running*> all;
    const size_t chosen = Below(random_, batch.size());
    for (size_t i = 0; i < batch.size(); ++i) {
      for (size_t rank = 0; rank < of_rank.size(); ++rank) {
        all.push_back(running_
                          .emplace_back(std::make_unique<Running>(
                              batch[i].of_rank[rank], batch[i].in_place))
                          .get());
        of_rank[rank].push_back(all.back());
        if (may_fail && i == chosen && static_cast<int>(rank) == faulty_rank_) {
          Fail(all.back()->callbacks);
        }
      }
    }
    const bool shuffles = !is_orderly_ && Below(random_, 2) == 0;
    for (auto& mine : of_rank) {
      for (size_t i = mine.size(); shuffles && i > 1; --i) {
        std::swap(mine[i - 1], mine[Below(random_, static_cast<int64_t>(i))]);
      }
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      for (size_t rank = 0; rank < of_rank.size(); ++rank) {
        of_rank[rank][i]->SubmitTo(job.engine(static_cast<int>(rank)));
      }
    }
    return all;
  }

  // Some kinds of collectives never call these, and so do not fail.
  void Fail(TensorEntry& callbacks) {
    if (Below(random_, 3) != 0) return;
    if (fault_ == Fault::kStart) {
      callbacks.on_start = [](void* /*stream*/) {
        return absl::ResourceExhaustedError("made to fail");
      };
    } else if (fault_ == Fault::kAllocation) {
      callbacks.allocate_output =
          [](int, const std::vector<int64_t>&) -> absl::StatusOr<void*> {
        return absl::ResourceExhaustedError("made to fail");
      };
    }
  }

  // Only the operation that was made to fail does, and no rank times out.
  void Take(const CollectiveRequest& request, const absl::Status& status) {
    if (status.ok()) return;
    failed_ = true;
    const bool is_expected =
        fault_ == Fault::kTransport
            ? status.code() == absl::StatusCode::kUnavailable
            : fault_ != Fault::kNone && status.message() == "made to fail";
    EXPECT_TRUE(is_expected)
        << Name(request.kind) << " of '" << request.name << "': " << status;
  }

  // On every rank.
  void ExpectEnded() {
    for (int rank = 0; rank < size_; ++rank) {
      if (!job_->started(rank).ok()) continue;
      FloatEntry& entry = after_.emplace_back("after", std::vector<float>(10));
      entry.SubmitTo(job_->engine(rank));
    }
    for (FloatEntry& entry : after_) {
      const absl::Status status = entry.outcome.Wait();
      EXPECT_FALSE(status.ok());
      Take(entry.request, status);
    }
  }

  Random random_;
  const int size_;
  const Fault fault_;
  const int faulty_rank_;
  bool failed_ = false;
  bool is_orderly_ = false;  // each time in the same order, as a training loop
  // Outlive the jobs, which have their memory.
  std::deque<std::unique_ptr<Running>> running_;
  std::deque<std::deque<FloatEntry>> joins_;
  std::deque<FloatEntry> after_;
  std::unique_ptr<Job> job_;
  IdleWatch idle_watch_;
  std::vector<int32_t> subset_ranks_;
  std::unique_ptr<Job> subset_;
};

TEST(PropertyTest, EachResultIsRightOrAnError) {
  const int64_t count = FromEnvironment("TFRING_PROPERTY_SCHEDULES", 60);
  const auto first =
      static_cast<unsigned>(FromEnvironment("TFRING_PROPERTY_SEED", 1));
  int64_t failed = 0;
  for (int64_t i = 0; i < count; ++i) {
    const unsigned seed = first + static_cast<unsigned>(i);
    SCOPED_TRACE(testing::Message() << "TFRING_PROPERTY_SEED=" << seed);
    Schedule schedule(seed);
    schedule.Run();
    failed += schedule.failed() ? 1 : 0;
    if (HasFailure()) return;
  }
  std::cout << count << " schedules from seed " << first << ", " << failed
            << " of which were made to fail\n";
}

}  // namespace
}  // namespace tfring
