// Tensors on a device: with a second lane of host memory in its place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/transport/exchange.h"

namespace tfring {
namespace {

constexpr int kSize = 3;
constexpr int64_t kDeviceSegmentBytes = 5000;  // not the host's 1000

// The events of a rank, in their order.  Thread-safe.
class Events {
 public:
  void Add(const std::string& event) {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(event);
  }
  std::vector<std::string> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> events_;
};

// A job with a device lane and a log of events on each rank.
class DeviceLanesTest : public testing::Test {
 protected:
  // A rank's Events take the place of its lane's stream.
  std::unique_ptr<Job> MakeJob() {
    transports_ = MakeInProcessTransports(kSize);
    Options options = Job::ShortOptions();
    options.device_segment_bytes = kDeviceSegmentBytes;
    const auto add_lanes = [this](int rank, ProcessSet& set) {
      set.make_device_lane = [this, rank](const Options&, int32_t device,
                                          Transport& data) {
        events_[rank].Add("lane of " + std::to_string(device) + " over " +
                          std::to_string(data.size()));
        Lane lane;
        lane.stream = &events_[rank];
        lane.kernels = &CpuKernels();
        lane.transport = std::make_unique<HookedTransport>(
            std::move(transports_[rank]),
            Hooks{[&longest = longest_messages_[rank]](int, size_t bytes) {
                    longest = std::max(longest, bytes);
                  },
                  {},
                  {}});
        lane.costs = costs_;
        return lane;
      };
    };
    return std::make_unique<Job>(kSize, add_lanes, options);
  }

  Entries MakeDeviceEntries(const std::string& name, size_t count) {
    Entries entries = MakeEntries(kSize, name, count);
    for (const auto& entry : entries) {
      entry->request.device = 0;
      entry->callbacks.on_start = [name](void* stream) {
        static_cast<Events*>(stream)->Add("start " + name);
        return absl::OkStatus();
      };
      FloatEntry* const self = entry.get();
      entry->callbacks.on_finish = [name, self](void* stream) {
        static_cast<Events*>(stream)->Add(
            "finish " + name + " at " +
            std::to_string(static_cast<int>(self->result()[0])));
        EXPECT_EQ(self->outcome.calls(), 0);
        return absl::OkStatus();
      };
    }
    return entries;
  }

  Events events_[kSize];
  size_t longest_messages_[kSize] = {};
  std::optional<Costs> costs_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

TEST_F(DeviceLanesTest, StartThenWorkThenFinishThenDone) {
  const auto job = MakeJob();
  ExpectWorks(*job, "on the host");
  for (const char* name : {"first", "second"}) {
    const Entries entries = MakeDeviceEntries(name, 100);
    job->Submit(entries);
    ExpectSums(entries);
  }
  for (Events& events : events_) {
    EXPECT_EQ(events.Take(),
              (std::vector<std::string>{"lane of 0 over 3", "start first",
                                        "finish first at 6", "start second",
                                        "finish second at 6"}));
  }
  ExpectWorks(*job);
}

TEST_F(DeviceLanesTest, TravelsInSegmentsOfADevice) {
  const auto job = MakeJob();
  const Entries entries = MakeDeviceEntries("segments", 30000);
  job->Submit(entries);
  ExpectSums(entries);
  job->Shutdown();
  for (const size_t longest : longest_messages_) {
    EXPECT_EQ(longest, size_t{kDeviceSegmentBytes});
  }
}

// Few bytes go by recursive doubling, which sends them whole; not so where
// every byte takes long and messages cost nothing.
TEST_F(DeviceLanesTest, ItsCostsChooseTheAlgorithm) {
  for (const bool given : {false, true}) {
    if (given) {
      costs_ = Costs();
      costs_->within.seconds_per_byte = 1e-6;
    }
    std::fill_n(longest_messages_, kSize, 0);
    const auto job = MakeJob();
    const Entries entries = MakeDeviceEntries("few", 300);
    job->Submit(entries);
    ExpectSums(entries);
    job->Shutdown();
    for (const size_t longest : longest_messages_) {
      EXPECT_EQ(longest == 300 * sizeof(float), !given) << longest;
    }
  }
}

TEST_F(DeviceLanesTest, AJoinedRankContributesOnItsDevice) {
  const auto job = MakeJob();
  const Entries joins = MakeJoins(kSize);
  joins[1]->SubmitTo(job->engine(1));
  const Entries entries = MakeDeviceEntries("without 1", 30000);
  for (const int rank : {0, 2}) {
    entries[rank]->request.op = ReduceOp::kAverage;
    entries[rank]->SubmitTo(job->engine(rank));
  }
  for (const int rank : {0, 2}) {
    ASSERT_EQ(entries[rank]->outcome.Wait(), absl::OkStatus());
    EXPECT_EQ(entries[rank]->result(), std::vector<float>(30000, 2));
  }
  job->Submit(joins, {0, 2});
  ExpectOk(joins);
  EXPECT_EQ(events_[1].Take()[0], "lane of -1 over 3");
}

TEST_F(DeviceLanesTest, RanksMayCountTheirDevicesDifferently) {
  const auto job = MakeJob();
  const Entries entries = MakeDeviceEntries("ordinals", 10);
  for (int rank = 0; rank < kSize; ++rank) {
    entries[rank]->request.device = rank;
  }
  job->Submit(entries);
  ExpectSums(entries);
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(events_[rank].Take()[0],
              "lane of " + std::to_string(rank) + " over 3");
  }
}

TEST_F(DeviceLanesTest, ARankHasOneDevice) {
  const auto job = MakeJob();
  const Entries first = MakeDeviceEntries("first", 10);
  job->Submit(first);
  ExpectSums(first);
  FloatEntry other("other", {1});
  other.request.device = 1;
  other.SubmitTo(job->engine(0));
  ExpectError(
      other, absl::StatusCode::kInvalidArgument,
      "allreduce of 'other': its tensors are on GPU 1, and those before "
      "it were on GPU 0. A rank works with one GPU: start one for "
      "each.");
}

TEST_F(DeviceLanesTest, HostAndDeviceDoNotMeet) {
  const auto job = MakeJob();
  const Entries entries = MakeEntries(kSize, "places", 10);
  entries[2]->request.device = 0;
  job->Submit(entries);
  ExpectErrors(entries, absl::StatusCode::kFailedPrecondition,
               "places of the tensors differ");
  ExpectWorks(*job);
}

// ---- Errors ----

TEST_F(DeviceLanesTest, WithoutALaneEveryRankIsToldAndTheJobGoesOn) {
  Job job(kSize);
  for (int turn = 0; turn < 2; ++turn) {
    const Entries entries = MakeDeviceEntries("no lane", 10);
    job.Submit(entries);
    ExpectErrors(entries, absl::StatusCode::kUnimplemented, "");
    ExpectWorks(job);
  }
}

// A factory may take the loss of a rank for a reason to have no lane.
TEST_F(DeviceLanesTest, ARankMayBeLostWhileALaneIsMade) {
  Job job(2, [](int rank, ProcessSet& set) {
    set.make_device_lane = [rank](const Options&, int32_t,
                                  Transport& data) -> absl::StatusOr<Lane> {
      if (rank == 0) return absl::UnavailableError("no lane");
      absl::Status status;
      while (status.ok()) status = data.Progress();
      return status;
    };
  });
  const Entries on_device = MakeEntries(2, "on the device", 10);
  const Entries after = MakeEntries(2, "after", 10);
  for (int rank = 0; rank < 2; ++rank) {
    on_device[rank]->request.device = 0;
    on_device[rank]->SubmitTo(job.engine(rank));
  }
  EXPECT_FALSE(on_device[0]->outcome.Wait().ok());
  job.engine(0).Abort(absl::UnavailableError("rank 0 is lost"));
  EXPECT_FALSE(on_device[1]->outcome.Wait().ok());
  after[1]->SubmitTo(job.engine(1));
  const absl::Status status = after[1]->outcome.Wait();
  EXPECT_EQ(status.message(), "rank 0 is lost");
  job.Shutdown();
}

TEST_F(DeviceLanesTest, AnErrorOfOneRankEndsTheJob) {
  Job job(kSize, [](int rank, ProcessSet& set) {
    set.make_device_lane = [rank](const Options&, int32_t,
                                  Transport& data) -> absl::StatusOr<Lane> {
      if (rank == 0) {
        const auto late = absl::DeadlineExceededError("no turn");
        data.Abort(late);
        return late;
      }
      return ExchangeOne(data, rank).status();
    };
  });
  for (const char* name : {"first", "later"}) {
    const Entries entries = MakeDeviceEntries(name, 10);
    job.Submit(entries);
    ExpectErrors(entries, {}, "no turn");
  }
  const Entries on_host = MakeEntries(kSize, "on the host", 10);
  job.Submit(on_host);
  ExpectErrors(on_host, {}, "no turn");
}

TEST_F(DeviceLanesTest, ALaneThatCannotBeMadeIsAskedForOnce) {
  int calls[kSize] = {};
  Job job(kSize, [&](int rank, ProcessSet& set) {
    set.make_device_lane = [&, rank](const Options&, int32_t, Transport&) {
      ++calls[rank];
      return absl::UnavailableError("rank 1 has no driver");
    };
  });
  for (int turn = 0; turn < 2; ++turn) {
    const Entries entries = MakeDeviceEntries("no driver", 10);
    job.Submit(entries);
    ExpectErrors(entries, absl::StatusCode::kUnavailable,
                 "rank 1 has no driver");
    ExpectWorks(job);
  }
  for (const int count : calls) EXPECT_EQ(count, 1);
}

// The callback fails on one rank only.
class DeviceCallbackTest : public DeviceLanesTest,
                           public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(FailingRank, DeviceCallbackTest,
                         testing::Range(0, kSize));

TEST_P(DeviceCallbackTest, AnErrorBeforeTheWorkReachesEveryRank) {
  const auto job = MakeJob();
  const Entries entries = MakeDeviceEntries("launch", 1000);
  entries[GetParam()]->callbacks.on_start = [](void*) {
    return absl::InternalError("CUDA_ERROR_LAUNCH_FAILED");
  };
  job->Submit(entries);
  ExpectErrors(entries, {}, "CUDA_ERROR_LAUNCH_FAILED");
  FloatEntry later("later", {1});
  later.SubmitTo(job->engine(0));
  EXPECT_FALSE(later.outcome.Wait().ok());
}

TEST_P(DeviceCallbackTest, AnErrorAfterTheWorkEndsTheJob) {
  const auto job = MakeJob();
  const Entries entries = MakeDeviceEntries("event", 1000);
  entries[GetParam()]->callbacks.on_finish = [](void*) {
    return absl::InternalError("CUDA_ERROR_INVALID_HANDLE");
  };
  job->Submit(entries);
  for (const auto& entry : entries) {
    // The other ranks may have had their sums before the failure.
    const bool must_fail = entry == entries[GetParam()];
    EXPECT_TRUE(!entry->outcome.Wait().ok() || !must_fail);
  }
  const Entries later = MakeEntries(kSize, "later", 10);
  job->Submit(later);
  ExpectErrors(later, {}, "CUDA_ERROR_INVALID_HANDLE");
}

}  // namespace
}  // namespace tfring
