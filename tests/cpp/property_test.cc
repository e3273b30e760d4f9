// Random schedules of collectives of all kinds, types and sizes.  Each rank has
// its own order and pace; ranks are at most one step apart.  Collectives
// repeat, with new ones in between, and run at the same time as collectives of
// a process set.  Some ranks may have joined, some requests differ between
// ranks, and one rank may have an injected fault.  Every result must be exact
// to the bit, or an error.  A request that differs between ranks fails on every
// rank, and the job continues.  All other errors need an injected fault, and
// then the whole job ends.  No schedule hangs.
//
// TFRING_PROPERTY_SCHEDULES is the number of schedules, TFRING_PROPERTY_SEED
// the first seed.  A failure names the seed that reproduces it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <numeric>
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
        size_(OneOf(random_, kSizes)),
        fault_(OneOf(random_, kFaults)),
        faulty_rank_(static_cast<int>(Below(random_, size_))) {}

  void Run() {
    MakeJobs();
    const int64_t phases = 1 + Below(random_, 3);
    for (int64_t phase = 0; phase < phases && !Stops(); ++phase) {
      RunPhase("phase " + std::to_string(phase));
    }
    if (!Stops() && fault_ == Fault::kNone) {
      // Earlier collectives must have left no state behind.
      ExpectWorks(*job_);
    }
    if (failed_) ExpectEnded();
    job_->Shutdown();
    if (subset_) subset_->Shutdown();
  }

  bool failed() const { return failed_; }

 private:
  static constexpr int kSizes[] = {1, 2, 2, 3, 3, 4, 4, 4, 5, 8};
  static constexpr Fault kFaults[] = {Fault::kNone, Fault::kNone,
                                      Fault::kTransport, Fault::kStart,
                                      Fault::kAllocation};

  struct Item {
    Running* running;
    Running* after;  // of the same name, or null
  };
  // The entries that one rank submits, by step.
  struct Script {
    Engine* engine;
    bool waits;  // for the whole step before the next one
    bool may_fail;
    std::vector<std::vector<Item>> steps;
  };

  bool Stops() const { return failed_ || testing::Test::HasFailure(); }

  void MakeJobs() {
    constexpr Medium kMedia[] = {
        Medium::kInProcess, Medium::kSharedMemory, Medium::kNodesOfTwo,
        Medium::kTwoNodes,  Medium::kTwoNodes,     Medium::kTcp,
        Medium::kTcpLater,  Medium::kTcpOneNode,   Medium::kTcpNodesOfTwo};
    constexpr AllreduceAlgorithm kAlgorithms[] = {AllreduceAlgorithm::kRing,
                                                  AllreduceAlgorithm::kAuto};
    const Medium medium = OneOf(random_, kMedia);
    Options options;
    options.fusion_threshold_bytes = Below(random_, 2) * (64 << 10);
    options.segment_bytes = options.network_segment_bytes =
        1000 + 1000 * Below(random_, 4);
    options.buckets_in_flight = 1 + Below(random_, 3);
    options.allreduce = OneOf(random_, kAlgorithms);
    // See progress_tree.h.
    options.max_progress_peers = Below(random_, 2) == 0 ? 1 : 32;
    std::vector<Job::Transports> channels;
    for (int i = 0; i < 4; ++i) {
      channels.push_back(
          MakeTransports(i == 0 ? ControlBeside(medium) : medium, size_));
    }
    if (fault_ == Fault::kTransport) {
      auto& faulty = channels[Below(random_, 4)][faulty_rank_];
      faulty = MakeFaultyTransport(std::move(faulty), 1 + Below(random_, 2000));
    }
    job_ = std::make_unique<Job>(std::move(channels[0]), std::move(channels[1]),
                                 options, [&](int rank, ProcessSet& set) {
                                   set.make_data = [&channels, rank,
                                                    next = 2]() mutable {
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

  // Some collectives, maybe more than once, maybe while some ranks have joined.
  void RunPhase(const std::string& name) {
    std::vector<int> ranks(size_);
    std::iota(ranks.begin(), ranks.end(), 0);
    if (Below(random_, 3) == 0) {
      Shuffle(ranks);
      ranks.resize(1 + Below(random_, size_));
      std::sort(ranks.begin(), ranks.end());
    }
    const Entries& join = joins_.emplace_back(MakeJoins(size_));
    for (int rank = 0; rank < size_; ++rank) {
      if (std::count(ranks.begin(), ranks.end(), rank) == 0) {
        join[rank]->SubmitTo(job_->engine(rank));
      }
    }
    std::vector<Script> scripts;
    AddScripts(scripts, *job_, ranks, {}, name);
    if (subset_) {
      std::vector<int> all(subset_->size());
      std::iota(all.begin(), all.end(), 0);
      AddScripts(scripts, *subset_, all, subset_ranks_, name);
    }
    OnThreads(static_cast<int>(scripts.size()), [&](int i) {
      for (const std::vector<Item>& step : scripts[i].steps) {
        for (const Item& item : step) {
          if (item.after != nullptr) item.after->Wait();
          item.running->SubmitTo(*scripts[i].engine);
        }
        for (const Item& item : step) {
          if (scripts[i].waits) item.running->Wait();
        }
      }
    });
    for (const Script& script : scripts) {
      for (const std::vector<Item>& step : script.steps) {
        for (const Item& item : step) Take(*item.running, script.may_fail);
      }
    }
    if (Stops()) return;
    running_.clear();
    if (ranks.size() == join.size()) return;
    for (const int rank : ranks) join[rank]->SubmitTo(job_->engine(rank));
    for (const auto& entry : join) Take(entry->request, entry->outcome.Wait());
  }

  // Adds a script for each of `ranks` of `job`.  `world_ranks` are the ranks of
  // its members in the world, if they differ.
  void AddScripts(std::vector<Script>& scripts, Job& job,
                  const std::vector<int>& ranks,
                  const std::vector<int32_t>& world_ranks,
                  const std::string& name) {
    const auto size = static_cast<int>(ranks.size());
    const bool is_world = &job == job_.get();
    const auto draw = [&](const std::string& one_name) {
      return Draw(one_name, ranks, world_ranks, /*joins=*/size < job.size());
    };
    std::vector<RandomCollective> batch;
    const int64_t count = 1 + Below(random_, 8);
    for (int64_t i = 0; i < count; ++i) {
      batch.push_back(draw(name + ", " + std::to_string(i)));
    }
    const int64_t steps = Below(random_, 2) == 0 ? 1 : 1 + Below(random_, 12);
    // Each step has the same order, as in a training loop.
    const bool is_orderly = Below(random_, 2) == 0;
    const bool waits = Below(random_, 2) == 0;
    const size_t first = scripts.size();
    for (const int rank : ranks) {
      scripts.push_back({&job.engine(rank), waits, is_world, {}});
    }
    std::vector<std::vector<Running*>> before(
        size, std::vector<Running*>(batch.size()));
    for (int64_t step = 0; step < steps; ++step) {
      if (Below(random_, 2) == 0) {
        for (RandomCollective& one : batch) Maker(random_, size).Vary(one);
      }
      std::vector<RandomCollective> now = batch;
      const size_t chosen = Below(random_, count);
      const auto wrong_rank = static_cast<int>(Below(random_, 8 * size));
      const bool differs =
          size > 1 && wrong_rank < size &&
          now[chosen].of_rank[0].request.kind == CollectiveKind::kAllreduce;
      if (differs) now[chosen].of_rank[wrong_rank].request.prescale_factor = 7;
      if (Below(random_, 8) == 0) {
        now.push_back(draw(name + ", besides, " + std::to_string(step)));
      }
      const bool shuffles = !is_orderly && Below(random_, 2) == 0;
      for (int i = 0; i < size; ++i) {
        std::vector<Item> items;
        for (size_t k = 0; k < now.size(); ++k) {
          running_.push_back(
              std::make_unique<Running>(now[k].of_rank[i], now[k].in_place));
          Running* const one = running_.back().get();
          one->differs = differs && k == chosen;
          if (is_world && k == chosen && ranks[i] == faulty_rank_) {
            Fail(one->callbacks);
          }
          const bool repeats = k < batch.size();
          items.push_back({one, repeats ? before[i][k] : nullptr});
          if (repeats) before[i][k] = one;
        }
        if (now.size() > batch.size()) {
          std::swap(items.back(), items[Below(random_, now.size())]);
        }
        if (shuffles) Shuffle(items);
        scripts[first + i].steps.push_back(std::move(items));
      }
    }
  }

  RandomCollective Draw(const std::string& name, const std::vector<int>& ranks,
                        const std::vector<int32_t>& world_ranks, bool joins) {
    while (true) {
      RandomCollective one =
          Maker(random_, static_cast<int>(ranks.size())).Make(name);
      const CollectiveRequest& request = one.of_rank[0].request;
      const bool needs_all = request.kind == CollectiveKind::kReduceScatter ||
                             request.kind == CollectiveKind::kScatterInPlace ||
                             request.kind == CollectiveKind::kGatherInPlace ||
                             request.kind == CollectiveKind::kAlltoall;
      if (joins && needs_all) continue;
      if (Below(random_, 2) == 0) Scale(one);
      const int root = ranks[request.root_rank];
      for (RandomCollective::Part& part : one.of_rank) {
        part.request.root_rank = world_ranks.empty() ? root : world_ranks[root];
      }
      return one;
    }
  }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[Below(random_, static_cast<int64_t>(i))]);
    }
  }

  // Scales before and after by factors that cancel, where that is exact.
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

  void Take(Running& one, bool may_fail) {
    const absl::Status status = one.CheckIfOk();
    EXPECT_FALSE(one.differs && status.ok()) << one.request().name;
    if (one.differs && status.code() == absl::StatusCode::kFailedPrecondition) {
      return;
    }
    EXPECT_TRUE(status.ok() || may_fail) << status;
    Take(one.request(), status);
  }

  // No other operation than the chosen one fails, and no rank times out.
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

  // Expects that the job has ended on every rank.
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
  // Outlive the jobs, which have their memory.
  std::deque<std::unique_ptr<Running>> running_;
  std::deque<Entries> joins_;
  std::deque<FloatEntry> after_;
  std::unique_ptr<Job> job_;
  IdleWatch idle_watch_;
  std::vector<int32_t> subset_ranks_;
  std::unique_ptr<Job> subset_;
};

TEST(PropertyTest, EachResultIsRightOrAnError) {
  const int64_t count = FromEnvironment("TFRING_PROPERTY_SCHEDULES", 100);
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
