// How the ranks agree on a bucket while another one is on the wire.
#include "tfring_ops/engine/negotiation/negotiator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/in_process_transport.h"
#include "tests/cpp/manual_clock.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/transport/forwarding.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {
namespace {

// A transport whose waits last until there have been more than `before` sends.
class SlowTransport final : public ForwardingTransport {
 public:
  SlowTransport(std::unique_ptr<Transport> inner, std::atomic<int>& waits,
                const std::atomic<int>& sends, const std::atomic<int>& before)
      : ForwardingTransport(std::move(inner)),
        waits_(waits),
        sends_(sends),
        before_(before) {}

  void SetAttendant(std::function<absl::Status()> attend) override {
    attend_ = attend;
    ForwardingTransport::SetAttendant(std::move(attend));
  }

  absl::Status Wait(OperationId request) override {
    ++waits_;
    EXPECT_TRUE(Await([this] {
      EXPECT_TRUE(attend_().ok());
      return sends_ > before_;
    }));
    return ForwardingTransport::Wait(request);
  }

 private:
  std::atomic<int>& waits_;
  const std::atomic<int>&sends_, &before_;
  std::function<absl::Status()> attend_;
};

TEST(NegotiatorTest, TheNextBucketIsAgreedOnWhileOneIsOnTheWire) {
  constexpr int kSize = 3;
  Options options = Job::ShortOptions();
  options.stall_check_seconds = options.stall_shutdown_seconds = 0;
  std::atomic<int> waits{0}, sends{0}, before{-1};
  Job job(
      kSize,
      [&](int rank, ProcessSet& set) {
        set.data = std::make_unique<SlowTransport>(std::move(set.data), waits,
                                                   sends, before);
        if (rank != Negotiator::kCoordinatorRank) return;
        set.control = CountSends(std::move(set.control), sends);
      },
      options);
  waits = 0;
  before = std::numeric_limits<int>::max();
  // This is too large to be run by the thread that submits it, which is the
  // test's.
  const Entries first = MakeEntries(kSize, "first", 300'000);
  const Entries second = MakeEntries(kSize, "second", 10);
  job.Submit(first);
  while (waits < kSize) std::this_thread::yield();
  before = sends.load();
  job.Submit(second);
  ExpectSums(first);
  ExpectSums(second);
}

// The negotiators of a tree of ranks, one thread's.
class Negotiators {
 public:
  static constexpr int kSize = 12;

  Negotiators() {
    options_.max_progress_peers = 1;
    for (const auto& transport : transports_) {
      ranks_.push_back(
          std::make_unique<Negotiator>(options_, members_, *transport, clock_));
    }
  }

  // Each rank looks `times` times, after `time`.
  void Pass(Clock::duration time, int times) {
    for (int i = 0; i < times; ++i) {
      clock_.Advance(time);
      for (int rank = 0; rank < kSize; ++rank) Submit(rank, {});
      EXPECT_TRUE(ranks_[0]->silent().empty());
    }
  }

  // Progresses until there is nothing to do.
  void Run() {
    bool progressed = true;
    while (progressed) {
      progressed = false;
      for (int rank = 0; rank < kSize; ++rank) {
        progressed = Submit(rank, {}) || progressed;
      }
    }
  }

  bool Submit(int rank, const std::vector<std::string>& names,
              bool shutdown = false) {
    std::vector<CollectiveRequest> requests;
    for (const std::string& name : names) {
      requests.emplace_back().name = name;
      requests.back().tensors = {{name, {4}}};
    }
    const bool progressed =
        ranks_[rank]->Progress(std::move(requests), shutdown).value();
    while (const auto decision = ranks_[rank]->Next().value()) {
      for (const Response& response : decision->response_list.responses) {
        for (const std::string& name : response.names) {
          decided_[rank].push_back(name);
        }
      }
    }
    return progressed;
  }

  // Rank 0 looks until it has made its `count`th decision, which may still have
  // to leave.
  void RunCoordinatorUntil(size_t count) {
    while (decided_[0].size() + ranks_[0]->HasNext() < count) Submit(0, {});
  }

  using Names = std::vector<std::string>;
  const std::vector<Names>& decided() const { return decided_; }  // by rank

 private:
  Options options_;
  const Members members_{kSize};
  ManualClock clock_;
  const std::vector<std::unique_ptr<Transport>> transports_ =
      MakeInProcessTransports(kSize);
  std::vector<std::unique_ptr<Negotiator>> ranks_;
  std::vector<Names> decided_{kSize};
};

// All of them have sent the same bytes, and so are added together.
TEST(NegotiatorTest, ARequestOfARankThatDepartsIsVoidForTheOthersThatDo) {
  Negotiators ranks;
  ranks.Submit(0, {"a"});
  for (int rank = 1; rank < Negotiators::kSize; ++rank) {
    ranks.Submit(rank, {"a"}, /*shutdown=*/true);
  }
  ranks.Run();
  for (const auto& names : ranks.decided()) EXPECT_TRUE(names.empty());
}

// Rank 11 is not a neighbor of the coordinator.  The coordinator therefore
// reads rank 11's earlier messages only after the schedule has ended.
TEST(NegotiatorTest, ARequestFromBeforeAScheduleDoesNotCountAfterIt) {
  constexpr int kSize = Negotiators::kSize;
  Negotiators ranks;
  for (int rank = 0; rank < kSize; ++rank) ranks.Submit(rank, {"a"});
  ranks.Run();
  for (int rank = 1; rank < kSize; ++rank) ranks.Submit(rank, {"a"});
  // The second decision begins a schedule.
  ranks.Submit(0, {"a"});
  ranks.RunCoordinatorUntil(2);
  ranks.Submit(kSize - 1, {"b"});
  ranks.Run();

  for (int rank = 0; rank + 2 < kSize; ++rank) ranks.Submit(rank, {"b"});
  ranks.Run();
  for (const auto& names : ranks.decided()) {
    EXPECT_EQ(names, (Negotiators::Names{"a", "a"}));
  }
  ranks.Submit(kSize - 2, {"b"});
  ranks.Run();
  for (const auto& names : ranks.decided()) {
    EXPECT_EQ(names, (Negotiators::Names{"a", "a", "b"}));
  }
}

TEST(NegotiatorTest, NorDoesItHideTheHeartbeatsBehindIt) {
  constexpr int kSize = Negotiators::kSize;
  Negotiators ranks;
  for (const char* const name : {"a", "b", "a"}) {
    for (int rank = 0; rank < kSize; ++rank) ranks.Submit(rank, {name});
    ranks.Run();
  }
  for (int rank = kSize - 1; rank >= 0; --rank) ranks.Submit(rank, {"b"});
  ranks.RunCoordinatorUntil(4);
  // All ranks submit, so the schedule continues and no rank waits.
  for (int rank = kSize - 1; rank >= 0; --rank) ranks.Submit(rank, {"a"});
  ranks.Pass(std::chrono::milliseconds(60), 10);
  for (const auto& names : ranks.decided()) {
    EXPECT_EQ(names, (Negotiators::Names{"a", "b", "a", "b", "a"}));
  }
  ranks.Pass(std::chrono::seconds(1), 100);
}

}  // namespace
}  // namespace tfring
