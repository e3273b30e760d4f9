// Engines between nodes, which have several buckets on the wire at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/gate.h"
#include "tests/cpp/ranks.h"

namespace tfring {
namespace {

constexpr int kSize = 3;
// The number of floats of a tensor that is large enough for a worker.
constexpr size_t kLarge = 20'000;

// A job with one rank per node and a gate in the first channel of rank 1.
class BucketsInFlightTest : public testing::Test {
 protected:
  explicit BucketsInFlightTest(int64_t buckets_in_flight = 2) {
    std::vector<int> nodes;
    for (int rank = 0; rank < kSize; ++rank) nodes.push_back(rank);
    auto data = MakeInProcessTransports(nodes);
    data[1] = std::make_unique<GatedTransport>(std::move(data[1]), gate_,
                                               /*is_data=*/false);
    for (int64_t i = 1; i < buckets_in_flight; ++i) {
      more_.push_back(MakeInProcessTransports(nodes));
    }
    Options options = Job::ShortOptions();
    options.network_segment_bytes = 1000;
    options.buckets_in_flight = buckets_in_flight;
    job_ = std::make_unique<Job>(
        MakeInProcessTransports(nodes), std::move(data), options,
        [this](int rank, ProcessSet& set) {
          set.clock = &clocks_.of(rank);
          set.make_data = [this, rank, made = size_t{0}]() mutable {
            return std::move(more_[made++][rank]);
          };
        });
    // Measures the cost of an allreduce while the gate is open.
    ExpectWorks(*job_, "first");
    ExpectWorks(*job_, "second");
  }

  ~BucketsInFlightTest() override { gate_.Open(); }

  // Submits an allreduce that waits for the gate.
  Entries SubmitHeld(const std::string& name) {
    gate_.Close();
    Entries entries = MakeEntries(kSize, name, kLarge);
    job_->Submit(entries);
    return entries;
  }

  // Lets all ranks agree on the submitted entries and begin the allowed ones.
  void Pass() { clocks_.AwaitLooks({0, 1, 2}); }

  Gate gate_;
  RankClocks clocks_{kSize};
  std::vector<std::vector<std::unique_ptr<Transport>>> more_;  // by channel
  std::unique_ptr<Job> job_;
};

TEST_F(BucketsInFlightTest, OneGoesOnWhileAnotherIsHeld) {
  for (const size_t count : {size_t{10}, kLarge}) {
    const Entries held = SubmitHeld("held");
    const Entries second = MakeEntries(kSize, "second", count);
    const Entries third = MakeEntries(kSize, "third", count);
    job_->Submit(second);
    job_->Submit(third);
    ExpectSums(second);
    Pass();
    EXPECT_EQ(held[1]->outcome.calls(), 0);
    // The third bucket has the turn after the held one.
    EXPECT_EQ(third[1]->outcome.calls(), 0);
    gate_.Open();
    ExpectSums(held);
    ExpectSums(third);
    ExpectWorks(*job_);  // It is the first channel's turn again.
  }
}

TEST_F(BucketsInFlightTest, AllElseComesAfterWhatWasBeforeIt) {
  for (const auto kind :
       {CollectiveKind::kBarrier, CollectiveKind::kBroadcast,
        CollectiveKind::kAllgather, CollectiveKind::kReduceScatter}) {
    SCOPED_TRACE(Name(kind));
    const Entries held = SubmitHeld("held");
    const Entries after = MakeEntries(kSize, "after", 10, kind);
    job_->Submit(after);
    Pass();
    for (const auto& entry : after) EXPECT_EQ(entry->outcome.calls(), 0);
    gate_.Open();
    ExpectSums(held);
    ExpectOk(after);
    for (const auto& entry : after) EXPECT_EQ(entry->outcome.calls(), 1);
    // It is the first channel's turn again.
    ExpectWorks(*job_);
  }
}

TEST_F(BucketsInFlightTest, ARankThatHasJoinedTakesPart) {
  gate_.Close();
  const Entries joins = MakeJoins(kSize);
  joins[2]->SubmitTo(job_->engine(2));
  const Entries first = MakeEntries(kSize, "first", kLarge);
  const Entries second = MakeEntries(kSize, "second", kLarge);
  for (const Entries* entries : {&first, &second}) {
    job_->Submit(*entries, {0, 1});
  }
  EXPECT_TRUE(second[0]->outcome.Wait().ok());
  EXPECT_EQ(first[1]->outcome.calls(), 0);
  gate_.Open();
  for (const int rank : {0, 1}) {
    for (const Entries* entries : {&first, &second}) {
      FloatEntry& entry = *(*entries)[rank];
      EXPECT_TRUE(entry.outcome.Wait().ok());
      EXPECT_TRUE(entry.result() == std::vector<float>(kLarge, 1 + 2));
    }
  }
  job_->Submit(joins, {0, 1});
  EXPECT_TRUE(joins[2]->outcome.Wait().ok());
  ExpectWorks(*job_);
}

TEST_F(BucketsInFlightTest, AShutdownWaitsForThem) {
  const Entries held = SubmitHeld("held");
  const Entries second = MakeEntries(kSize, "second", kLarge);
  job_->Submit(second);
  ExpectSums(second);
  std::thread shuts_down([this] { job_->engine(0).Shutdown(); });
  Pass();
  EXPECT_EQ(held[1]->outcome.calls(), 0);
  gate_.Open();
  ExpectSums(held);
  shuts_down.join();
}

TEST_F(BucketsInFlightTest, AnAbortReachesAllOnce) {
  const Entries held = SubmitHeld("held");
  const Entries second = MakeEntries(kSize, "second", kLarge);
  const Entries third = MakeEntries(kSize, "third", kLarge);
  const Entries fourth = MakeEntries(kSize, "fourth", kLarge);
  // A worker takes at most two buckets, so this one stays in the queue.
  const Entries waits = MakeEntries(kSize, "waits", kLarge);
  for (const Entries* entries : {&second, &third, &fourth, &waits}) {
    job_->Submit(*entries);
  }
  ExpectSums(second);
  ExpectSums(fourth);
  job_->engine(0).Abort(absl::UnavailableError("lost"));
  gate_.Open();
  for (const Entries* entries : {&held, &third, &waits}) {
    for (const auto& entry : *entries) {
      const absl::Status status = entry->outcome.Wait();
      // Entries that a worker had taken may succeed.
      if (entries == &waits || !status.ok()) {
        EXPECT_EQ(status.message(), "lost");
      }
      EXPECT_EQ(entry->outcome.calls(), 1);
    }
  }
}

// The next bucket of a lane must not take the place of one that failed there.
TEST_F(BucketsInFlightTest, WhatFailsOnOneRankGivesNobodyAnothersData) {
  std::vector<Entries> work;
  constexpr float kFactors[] = {1, 10, 100, 1000};
  for (const float factor : kFactors) {
    Entries& entries = work.emplace_back();
    for (int rank = 0; rank < kSize; ++rank) {
      entries.push_back(std::make_unique<FloatEntry>(
          "times " + std::to_string(factor),
          std::vector<float>(kLarge, factor * static_cast<float>(rank + 1))));
    }
  }
  // Entries 0 and 2 share a lane; 1 and 3 share the second one.  When entry 3
  // is done, entry 2 is next in its lane.
  Completion& last = work[3][0]->outcome;
  work[0][0]->callbacks.on_start = [&last](void* /*stream*/) {
    EXPECT_TRUE(last.Wait().ok());
    return absl::ResourceExhaustedError("no memory");
  };
  for (const Entries& entries : work) job_->Submit(entries);
  for (size_t i = 0; i < work.size(); ++i) {
    const bool shares_the_lane = i % 2 == 0;
    for (const auto& entry : work[i]) {
      SCOPED_TRACE(entry->request.name);
      const absl::Status status = entry->outcome.Wait();
      if (shares_the_lane) {
        EXPECT_EQ(status.message(), "no memory");
      } else if (status.ok()) {
        EXPECT_TRUE(entry->result() ==
                    std::vector<float>(kLarge, 6 * kFactors[i]));
      }
      EXPECT_EQ(entry->outcome.calls(), 1);
    }
  }
}

class ThreeBucketsInFlightTest : public BucketsInFlightTest {
 protected:
  ThreeBucketsInFlightTest() : BucketsInFlightTest(3) {}
};

TEST_F(ThreeBucketsInFlightTest, SumsAreRightInAnyOrder) {
  std::mt19937 random(7);
  constexpr size_t kCounts[] = {1, 100, 3000, 17'000, kLarge, 40'000};
  // The same names again and again: a cached schedule holds for a part of it.
  for (int step = 0; step < 12; ++step) {
    std::vector<Entries> work;
    for (int i = 0; i < 8; ++i) {
      work.push_back(MakeEntries(kSize, "sum " + std::to_string(i),
                                 kCounts[(i * 5 + step / 4) % 6]));
    }
    for (int rank = 0; rank < kSize; ++rank) {
      std::vector<int> order = {0, 1, 2, 3, 4, 5, 6, 7};
      if (step >= 8) std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) work[i][rank]->SubmitTo(job_->engine(rank));
    }
    for (const Entries& entries : work) ExpectSums(entries);
  }
}

TEST(BucketsInFlight, AChannelThatCannotBeMadeEndsTheJob) {
  const std::vector<int> nodes = {0, 1};
  auto more = MakeInProcessTransports(nodes);
  Job job(MakeInProcessTransports(nodes), MakeInProcessTransports(nodes),
          Job::ShortOptions(), [&](int rank, ProcessSet& set) {
            set.make_data =
                [&, rank]() -> absl::StatusOr<std::unique_ptr<Transport>> {
              if (rank == 1) return absl::UnavailableError("no channel");
              return std::move(more[rank]);
            };
          });
  EXPECT_EQ(job.started(1).message(), "no channel");
  ASSERT_TRUE(job.started(0).ok());
  FloatEntry entry("never", {1});
  entry.SubmitTo(job.engine(0));
  EXPECT_EQ(entry.outcome.Wait().message(), "no channel");
}

}  // namespace
}  // namespace tfring
