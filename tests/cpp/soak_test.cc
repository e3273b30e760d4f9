// Thousands of collectives of all kinds at four ranks, each rank in an order of
// its own, within a node and between nodes: what comes out is compared to the
// bit.
//
// TFRING_SOAK says how many; `make soak` asks for 10,000.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/random_collectives.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

constexpr int kSize = 4;
constexpr int kInFlight = 12;

int CollectiveCount() {
  const char* const text = std::getenv("TFRING_SOAK");
  return text == nullptr ? 600 : std::atoi(text);
}

class SoakTest : public testing::TestWithParam<Medium> {
 protected:
  // Between nodes several buckets are in flight.
  static Job MakeJob(const Options& options) {
    auto more = MakeTransports(GetParam(), kSize);
    return Job(MakeTransports(GetParam(), kSize),
               MakeTransports(GetParam(), kSize), options, /*id=*/0,
               /*world_ranks=*/{}, /*on_lost=*/nullptr,
               [&](int rank, ProcessSet& set) {
                 set.make_data = [&, rank] { return std::move(more[rank]); };
               });
  }
};
INSTANTIATE_TEST_SUITE_P(Media, SoakTest,
                         testing::Values(Medium::kSharedMemory,
                                         Medium::kNodesOfTwo));

TEST_P(SoakTest, CollectivesOfAllKinds) {
  Options options;
  options.fusion_threshold_bytes = 64 << 10;
  options.segment_bytes = options.network_segment_bytes = 4000;
  Random random(1);
  Maker maker(random, kSize);
  const int count = CollectiveCount();
  // Outlives the job, which has its memory.
  std::deque<std::unique_ptr<Running>> running;
  Job job = MakeJob(options);
  for (int made = 0; made < count; made += kInFlight) {
    std::vector<Running*> of_rank[kSize];
    for (int i = made; i < std::min(made + kInFlight, count); ++i) {
      RandomCollective collective =
          maker.Make("collective " + std::to_string(i));
      for (int rank = 0; rank < kSize; ++rank) {
        running.push_back(std::make_unique<Running>(
            std::move(collective.of_rank[rank]), collective.in_place));
        of_rank[rank].push_back(running.back().get());
      }
    }
    for (auto& mine : of_rank) {
      for (size_t i = mine.size(); i > 1; --i) {
        std::swap(mine[i - 1], mine[Below(random, i)]);
      }
    }
    for (size_t i = 0; i < of_rank[0].size(); ++i) {
      for (int rank = 0; rank < kSize; ++rank) {
        of_rank[rank][i]->SubmitTo(job.engine(rank));
      }
    }
    for (const auto& one : running) {
      one->Check();
      if (HasFatalFailure()) return;
    }
    running.clear();
  }
  job.Shutdown();
}

// Collectives come as in a training loop, each period some times over: those of
// a cached schedule, and those after it, have the same bits.
TEST_P(SoakTest, CollectivesThatRepeat) {
  constexpr int kMostInPeriod = 5, kMostTimes = 20;
  Options options;
  options.fusion_threshold_bytes = 0;
  options.segment_bytes = options.network_segment_bytes = 4000;
  Random random(2);
  Maker maker(random, kSize);
  const int count = CollectiveCount();
  std::deque<std::unique_ptr<Running>> running;
  Job job = MakeJob(options);
  for (int made = 0; made < count;) {
    std::vector<RandomCollective> period(1 + Below(random, kMostInPeriod));
    for (size_t i = 0; i < period.size(); ++i) {
      do {
        period[i] = maker.Make("bucket " + std::to_string(i));
      } while (!CollectiveOf(period[i].of_rank[0].request.kind).is_cacheable());
    }
    const int64_t times = 1 + Below(random, kMostTimes);
    for (int64_t step = 0; step < times; ++step) {
      for (int rank = 0; rank < kSize; ++rank) {
        for (const RandomCollective& collective : period) {
          running.push_back(std::make_unique<Running>(collective.of_rank[rank],
                                                      collective.in_place));
          running.back()->SubmitTo(job.engine(rank));
        }
      }
      for (const auto& one : running) {
        one->Check();
        if (HasFatalFailure()) return;
      }
      running.clear();
    }
    made += static_cast<int>(times * static_cast<int64_t>(period.size()));
  }
  job.Shutdown();
}

}  // namespace
}  // namespace tfring
