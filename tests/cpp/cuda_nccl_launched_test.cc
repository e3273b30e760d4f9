// Buckets that are launched while the GPU still works on earlier buckets; see
// Note [Launched buckets] in tfring_ops/engine/execution/lanes.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_engines.h"
#include "tests/cpp/nccl_ranks.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

using testing::ElementsAre;

constexpr int kSize = 3;

class CudaNcclLaunchedTest : public testing::Test {
 protected:
  using Change = std::function<void(TensorEntry&)>;

  static Options MakeOptions() {
    Options options = NcclOptions();
    options.fusion_threshold_bytes = 0;
    return options;
  }

  // Options for the ring by CUDA's IPC, without NCCL.
  static Options ByIpc() {
    Options options = MakeOptions();
    options.gpu_backend = Options::GpuBackend::kRing;
    options.cuda_ipc = true;
    options.allreduce = AllreduceAlgorithm::kRing;
    return options;
  }

  // With lanes, and a fusion buffer.
  void StartJob(const Options& options = MakeOptions()) {
    job_ = MakeNcclJob(kSize, options, clocks_);
    Submit("first", 100, Scale);
    ExpectSums();
    tensors_.clear();
    launches_before_ = FakeNccl()->collectives;
  }

  // An allreduce by the ranks from `first_rank` on.
  void Submit(const std::string& name, int64_t count = StreamedTensor::kCount,
              const Change& change = nullptr, int first_rank = 0) {
    for (int rank = first_rank; rank < kSize; ++rank) {
      tensors_.push_back(std::make_unique<StreamedTensor>(rank, rank, count));
      StreamedTensor& tensor = *tensors_.back();
      tensor.change = [this, name, rank, &change](TensorEntry& entry) {
        if (change) change(entry);
        entry.done = [this, name, rank, done = std::move(entry.done)](
                         const absl::Status& status) {
          {
            const std::lock_guard<std::mutex> lock(mutex_);
            done_[rank].push_back(name);
          }
          done(status);
        };
      };
      tensor.SubmitTo(job_->engine(rank), name);
    }
  }

  void Join(int rank) { joins_[rank]->SubmitTo(job_->engine(rank)); }

  // Scales the entry, so that it goes through the fusion buffer.
  static void Scale(TensorEntry& entry) {
    entry.request.prescale_factor = 2;
    entry.request.postscale_factor = 0.5;
  }

  int launches() const { return FakeNccl()->collectives - launches_before_; }

  // Returns when all ranks together have launched exactly this many.
  void AwaitLaunches(int count) const {
    EXPECT_TRUE(Await([&] { return launches() >= count; }));
    LookAround();
    EXPECT_EQ(launches(), count);
  }

  // Engines that have not ended would launch something if they could.
  void LookAround() const {
    clocks_.AwaitLooks({0, 1, 2}, [this] {
      return std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) {
        return one->outcome.calls() > 0;
      });
    });
  }

  void ExpectNoneIsDone() const {
    for (const auto& tensor : tensors_) EXPECT_EQ(tensor->outcome.calls(), 0);
  }

  void ExpectSums() const {
    for (const auto& tensor : tensors_) {
      const absl::Status status = tensor->outcome.Wait();
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(tensor->IsSumOver(kSize));
    }
  }

  // Once each.
  void ExpectAllFail(const std::string& reason) const {
    for (const auto& tensor : tensors_) {
      const absl::Status status = tensor->outcome.Wait();
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status, HasMessage(reason));
      EXPECT_EQ(tensor->outcome.calls(), 1);
    }
  }

  const WithFakeCuda devices_{&FakeOptions::devices, kSize};
  std::mutex mutex_;
  std::map<int, std::vector<std::string>> done_;  // names by rank, in order
  std::vector<std::unique_ptr<StreamedTensor>> tensors_;
  const Entries joins_ = MakeJoins(kSize);
  RankClocks clocks_{kSize};
  std::unique_ptr<Job> job_;
  int launches_before_ = 0;
};

// ---- The order ----

TEST_F(CudaNcclLaunchedTest, AsManyAreLaunchedAsMayBeInFlight) {
  for (const int count : {1, 2, 3}) {
    Options options = MakeOptions();
    options.buckets_in_flight = count;
    StartJob(options);
    done_.clear();
    const WithFakeCuda hold(&FakeOptions::held, 1);
    for (const char* const name : {"a", "b", "c", "d", "e"}) Submit(name);
    // Before the GPU has done the first.
    AwaitLaunches(count * kSize);
    ExpectNoneIsDone();
    FakeCuda()->held = 0;
    ExpectSums();
    EXPECT_EQ(launches(), 5 * kSize);
    job_->Shutdown();
    for (const auto& [rank, names] : done_) {
      EXPECT_THAT(names, ElementsAre("a", "b", "c", "d", "e")) << rank;
    }
    tensors_.clear();
  }
}

// The host knows that they are done.
TEST_F(CudaNcclLaunchedTest, TheFrameworksStreamIsNotMadeToWait) {
  StartJob();
  std::atomic<int> finishes{0};
  Submit("a", 100, [&](TensorEntry& entry) {
    entry.on_finish = [&](void*) {
      ++finishes;
      return absl::OkStatus();
    };
  });
  ExpectSums();
  EXPECT_EQ(finishes, 0);
}

// Short ones and long ones, with and without the fusion buffer, which grows.
TEST_F(CudaNcclLaunchedTest, StreamsThatAreLateByTurns) {
  Options options = MakeOptions();
  options.device_segment_bytes = 1 << 20;
  options.buckets_in_flight = 3;
  StartJob(options);
  const WithFakeCuda slow(&FakeOptions::delay_us, 3000);
  for (int round = 0; round < 2; ++round) {
    for (const int64_t count : {7, 20'000, 300'000 << round}) {
      const std::string name = std::to_string(round * 1'000'000 + count);
      Submit("as it is " + name, count);
      Submit("scaled " + name, count, Scale);
    }
    ExpectSums();
  }
}

// The memory of a joined rank's tensors is freed when its bucket is done.  The
// driver may then wait for all launched work.
TEST_F(CudaNcclLaunchedTest, ARankThatHasJoinedLaunchesOneAtATime) {
  StartJob();
  Join(0);
  {
    const WithFakeCuda hold(&FakeOptions::held, 1);
    for (const char* const name : {"a", "b", "c"}) {
      Submit(name, 100, nullptr, /*first_rank=*/1);
    }
    AwaitLaunches(2 * (kSize - 1) + 1);
    ExpectNoneIsDone();
  }
  ExpectOk(tensors_);
  for (int rank = 1; rank < kSize; ++rank) Join(rank);
  ExpectOk(joins_);
}

TEST_F(CudaNcclLaunchedTest, WhatIsLaunchedIsDoneBeforeTheEnd) {
  StartJob();
  const WithFakeCuda hold(&FakeOptions::held, 1);
  Submit("a");
  AwaitLaunches(kSize);
  std::thread shutdown([this] { job_->Shutdown(); });
  LookAround();
  ExpectNoneIsDone();
  FakeCuda()->held = 0;
  shutdown.join();
  ExpectSums();
}

// A barrier in host memory and a collective of the ring each begin when all
// earlier collectives have ended.  They end before the next collective is
// launched.
TEST_F(CudaNcclLaunchedTest, WhatIsNotLaunchedRunsAlone) {
  StartJob();
  const Entries barriers =
      MakeEntries(kSize, "barrier", 0, CollectiveKind::kBarrier);
  std::atomic<int> begun{0};
  {
    const WithFakeCuda hold(&FakeOptions::held, 1);
    Submit("a");
    AwaitLaunches(kSize);
    job_->Submit(barriers);
    LookAround();
    for (const auto& one : barriers) EXPECT_EQ(one->outcome.calls(), 0);
  }
  ExpectOk(barriers);
  for (const auto& tensor : tensors_) EXPECT_EQ(tensor->outcome.calls(), 1);
  {
    const WithFakeCuda hold(&FakeOptions::held, 1);
    Submit("b");
    Submit("by the ring", 100, [&](TensorEntry& entry) {
      entry.request.kind = CollectiveKind::kAdasum;
      entry.on_start = [&begun, start = entry.on_start](void* stream) {
        ++begun;
        return start(stream);
      };
    });
    Submit("c");
    AwaitLaunches(2 * kSize);
    EXPECT_EQ(begun, 0);
  }
  ExpectOk(tensors_);
  for (const auto& [rank, names] : done_) {
    EXPECT_THAT(names, ElementsAre("first", "a", "b", "by the ring", "c"));
  }
}

// A GPU's timeline track shows its buckets in turn, each until the GPU has done
// it.
TEST_F(CudaNcclLaunchedTest, TheTimelineShowsWhatTheGpuDoes) {
  StartJob();
  Timeline::Global().Start(/*mark_responses=*/false);
  int64_t released_ns = 0;
  {
    const WithFakeCuda hold(&FakeOptions::held, 1);
    Submit("a");
    Submit("b");
    AwaitLaunches(2 * kSize);
    released_ns = Timeline::Global().Now();
  }
  ExpectSums();
  const Timeline::Recording recording = Timeline::Global().Stop();
  std::map<int, std::vector<Timeline::Event>> tracks;
  for (const Timeline::Event& event : recording.events) {
    if (event.phase == Timeline::Phase::kBucket) {
      tracks[event.thread].push_back(event);
    }
  }
  ASSERT_EQ(tracks.size(), kSize);
  for (const auto& [track, buckets] : tracks) {
    ASSERT_EQ(buckets.size(), 2);
    EXPECT_EQ(buckets[0].name, "a");
    EXPECT_LT(buckets[0].begin_ns, released_ns);
    EXPECT_GE(buckets[0].end_ns, released_ns);
    EXPECT_GE(buckets[1].begin_ns, buckets[0].end_ns);
    EXPECT_GT(buckets[1].end_ns, buckets[1].begin_ns);
    for (const Timeline::Event& event : recording.events) {
      EXPECT_TRUE(event.thread != track ||
                  event.phase == Timeline::Phase::kBucket);
    }
  }
}

// By CUDA's IPC a bucket is done when it is launched.
TEST_F(CudaNcclLaunchedTest, TheRingDoesNotWaitForTheGpuEither) {
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  StartJob(ByIpc());
  const WithFakeCuda hold(&FakeOptions::held, 1);
  for (const char* const name : {"a", "b", "c", "d"}) Submit(name);
  ExpectOk(tensors_);
  FakeCuda()->held = 0;
  ExpectSums();
}

// ---- Errors ----

// An allgather's output is allocated while its stream waits for a rank that is
// lost; the driver would wait for the stream.
TEST_F(CudaNcclLaunchedTest, NoOutputIsAllocatedWhileTheRingWaits) {
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  const WithFakeCuda waits(&FakeOptions::waits, 0);
  StartJob(ByIpc());
  std::vector<std::unique_ptr<StreamedTensor>> reduced;
  for (int rank = 0; rank < kSize; ++rank) {
    reduced.push_back(std::make_unique<StreamedTensor>(rank, rank, 100));
    tensors_.push_back(std::make_unique<StreamedTensor>(rank, rank, 100));
    tensors_.back()->change = [](TensorEntry& entry) {
      entry.request.kind = CollectiveKind::kAllgather;
      // From here on the driver waits wherever CUDA may.
      entry.allocate_output = [](int, const std::vector<int64_t>&) {
        FakeCuda()->waits = 1;
        return OpenGpu(0)->kernels().Allocate(kSize * 100 * sizeof(float));
      };
    };
  }
  const int lost = kSize - 1;
  const WithFakeCuda hold(&FakeOptions::held_device, lost);
  for (int rank = 0; rank < kSize; ++rank) {
    reduced[rank]->SubmitTo(job_->engine(rank), "reduced");
    tensors_[rank]->SubmitTo(job_->engine(rank), "gathered");
  }
  ExpectOk(reduced);
  AwaitQuietGpus();
  job_->engine(lost).Abort(absl::UnavailableError("rank 2 is lost"));
  ExpectAllFail("rank 2 is lost");
  FakeCuda()->held_device = -1;
  FakeCuda()->waits = 0;
}

TEST_F(CudaNcclLaunchedTest, AnErrorIsOfAllThatTheGpuHasNotDone) {
  for (int rank = 0; rank < kSize; ++rank) {
    StartJob();
    Submit("done");
    ExpectSums();
    tensors_.clear();
    const WithFakeCuda hold(&FakeOptions::held, 1);
    Submit("in flight");
    AwaitLaunches(2 * kSize);
    const WithFakeNccl error(&fake_nccl::Options::async_error, rank);
    Submit("fails");
    EXPECT_TRUE(Await([&] { return launches() == 3 * kSize; }));
    FakeCuda()->held = 0;
    ExpectAllFail("remote process exited or there was a network error");
    Submit("later");
    ExpectAllFail("remote process exited or there was a network error");
    tensors_.clear();
    job_->Shutdown();
  }
}

TEST_F(CudaNcclLaunchedTest, ARankIsLost) {
  Options options = MakeOptions();
  options.stall_shutdown_seconds = 0;  // They wait without limit.
  StartJob(options);
  const WithFakeNccl lost(&fake_nccl::Options::lost, 1);
  for (const char* const name : {"a", "b", "c"}) Submit(name);
  AwaitLaunches(2 * kSize);
  ExpectNoneIsDone();
  job_->engine(1).Abort(absl::UnavailableError("rank 1 is lost"));
  ExpectAllFail("rank 1 is lost");
}

// All GPUs of this job wait for one rank; its options are the same.
class CudaNcclStuckTest : public CudaNcclLaunchedTest {
 protected:
  static constexpr const char* kReason =
      "NCCL has waited for another rank for 20 s";

  void SetUp() override {
    Options options = MakeOptions();
    options.device_segment_bytes = 2 << 20;
    StartJob(options);
  }

  void ExpectTimeouts() {
    EXPECT_TRUE(Await([&] { return launches() >= kSize; }));
    EXPECT_TRUE(clocks_.Advance(
        std::chrono::minutes(5), std::chrono::seconds(1), {0, 1, 2}, [this] {
          return std::all_of(
              tensors_.begin(), tensors_.end(),
              [](const auto& one) { return one->outcome.calls() > 0; });
        }));
    ExpectAllFail(kReason);
  }
};

TEST_F(CudaNcclStuckTest, ARankNeverComes) {
  const WithFakeNccl lost(&fake_nccl::Options::lost, 1);
  for (const char* const name : {"a", "b", "c"}) Submit(name);
  ExpectTimeouts();
}

// The ring makes the host wait for the GPU.
TEST_F(CudaNcclStuckTest, TheRingIsNext) {
  const WithFakeNccl lost(&fake_nccl::Options::lost, 1);
  Submit("a");
  Submit("by the ring", 100, [](TensorEntry& entry) {
    entry.request.kind = CollectiveKind::kAdasum;
  });
  ExpectTimeouts();
}

TEST_F(CudaNcclStuckTest, ARankHasJoined) {
  Join(0);
  const WithFakeNccl lost(&fake_nccl::Options::lost, 1);
  for (const char* const name : {"a", "b"}) {
    Submit(name, 100, nullptr, /*first_rank=*/1);
  }
  ExpectTimeouts();
  EXPECT_FALSE(joins_[0]->outcome.Wait().ok());
}

TEST_F(CudaNcclStuckTest, TheFusionBufferGrows) {
  const WithFakeNccl lost(&fake_nccl::Options::lost, 1);
  Submit("a");
  Submit("long", 1'000'000, Scale);
  ExpectTimeouts();
}

}  // namespace
}  // namespace tfring
