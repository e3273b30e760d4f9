// A rank is lost, or its GPU fails, while the remaining ranks wait for its
// work.  They end without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cpp/cuda_fusion_checks.h"
#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/cuda_ring_checks.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/hooked_transport.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/kernels/cuda_driver.h"

namespace tfring {
namespace {

void Wait(const std::atomic<int>& number, int value) {
  while (number < value) std::this_thread::yield();
}

// A rank with its GPU and its transport.
struct Rank {
  Rank(Transport& host, Way way, int gpu)
      : device(CudaDevice::ForOrdinal(gpu).value()),
        transport(MakeCudaTransport(*device, host, OptionsFor(way)).value()),
        scratch(device->kernels()),
        memory(device->kernels().Allocate(1 << 10).value()) {
    // An allocation on a rank with held streams waits for them, so memory is
    // allocated now.
    EXPECT_TRUE(scratch.AtLeast(64 << 10).ok());
  }

  // Returns when the allreduce is enqueued.
  absl::Status Allreduce(const SolvedAllreduce& c, const DeviceElements& data) {
    const RingContext context{*transport, device->kernels(), kSegmentBytes,
                              scratch};
    return RingAllreduce(context, {data.data(), data.data(), c.count, c.dtype,
                                   c.op, c.postscale});
  }

  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Transport> transport;
  Workspace scratch;
  void* const memory;
};

constexpr std::chrono::seconds kPatience{60};

// Ends the test if this takes too long, as a wait of the driver's that does not
// end cannot be left otherwise.
class Deadline {
 public:
  Deadline()
      : watch_([this] {
          std::unique_lock<std::mutex> lock(mutex_);
          if (ended_.wait_for(lock, kPatience, [this] { return has_ended_; })) {
            return;
          }
          std::fprintf(stderr, "A rank still waits after %d s.\n",
                       static_cast<int>(kPatience.count()));
          std::abort();
        }) {}
  ~Deadline() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_all();
    watch_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread watch_;
};

// A job that loses its last rank.  This rank has its own GPU, which has not
// finished the work that the remaining ranks wait for.
class LostRank {
 public:
  LostRank(int size, Way way, int64_t count)
      : way_(way),
        c_({DataType::kFloat32, ReduceOp::kSum, count}, size),
        uses_(size),
        hosts_(MakeInProcessTransports(size)) {
    for (int rank = 0; rank < size; ++rank) {
      // How often a rank sends, or looks for messages.
      std::atomic<int>& uses = uses_[rank];
      hosts_[rank] = std::make_unique<HookedTransport>(
          std::move(hosts_[rank]),
          Hooks{[&uses](int, size_t) { ++uses; }, {}, [&uses] { ++uses; }});
    }
  }

  const SolvedAllreduce& c() const { return c_; }

  // Calls ask(rank, data) on all ranks, and then end(rank, data) on the
  // remaining ranks.  If `depth` is given, the GPUs have queues of that depth
  // and the lost rank runs an allreduce until it is lost.
  template <typename Ask, typename End>
  void Run(const Ask& ask, const End& end,
           std::optional<int> depth = std::nullopt) {
    const int lost = static_cast<int>(hosts_.size()) - 1;
    const WithFakeCuda restored(&FakeOptions::depth, 0);
    // A killed process frees nothing.
    static auto* const killed = new std::vector<
        std::pair<std::unique_ptr<Rank>, std::unique_ptr<DeviceElements>>>();
    std::atomic<int> ready{0}, asked{0}, ended{0}, gone{0};
    OnThreads(lost + 1, [&](int number) {
      Transport& host = *hosts_[number];
      auto rank = std::make_unique<Rank>(host, way_, number == lost ? 1 : 0);
      auto data = std::make_unique<DeviceElements>(
          *rank->device, AllreduceInput(c_.dtype, c_.op, c_.count, number));
      ++ready;
      Wait(ready, lost + 1);
      if (number == lost) {
        FakeCuda()->held_device = 1;
        FakeCuda()->depth = depth.value_or(0);
        ++ready;
        ask(*rank, *data);
        ++asked;
        std::thread notice([&] {
          Wait(asked, lost + 1);
          AwaitNothingMoves();
          host.Abort(absl::UnavailableError("a rank is lost"));
          LoseGpu(1);
        });
        if (depth) rank->Allreduce(c_, *data).IgnoreError();
        notice.join();
        Wait(gone, lost);
        killed->emplace_back(std::move(rank), std::move(data));
        return;
      }
      Wait(ready, lost + 2);
      ask(*rank, *data);
      ++asked;
      end(*rank, *data);
      EXPECT_FALSE(rank->transport->HasAbandoned());
      // Until all have ended, a rank may still copy to another rank's memory.
      ++ended;
      Wait(ended, lost);
      data.reset();
      rank.reset();
      ++gone;
    });
    FakeCuda()->held_device = -1;
    // The driver reclaims the context of a killed process.
    (*CudaDriver::Get())->cuDevicePrimaryCtxRelease.Result(1);
  }

 private:
  // Returns when the remaining ranks poll for messages repeatedly and enqueue
  // nothing more on their GPUs.  This also shows that none of them waits in the
  // driver.
  void AwaitNothingMoves() {
    const std::atomic<int64_t>& calls = FakeCudaCounts().stream_calls;
    for (int64_t before = -1; before != calls;) {
      before = calls;
      for (size_t other = 0; other + 1 < uses_.size(); ++other) {
        const int uses = uses_[other];
        EXPECT_TRUE(Await([&] { return uses_[other] >= uses + 200; }));
      }
    }
  }

  const Way way_;
  const SolvedAllreduce c_;
  std::vector<std::atomic<int>> uses_;
  std::vector<std::unique_ptr<Transport>> hosts_;
  const Deadline deadline_;
  const WithFakeCuda open_own_{&FakeOptions::open_own, 1};
  const WithFakeCuda devices_{&FakeOptions::devices, 2};
};

// The parameters are the number of ranks, and the way between them.
class CudaLostRankTest : public testing::TestWithParam<std::tuple<int, Way>> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, CudaLostRankTest,
    testing::Values(std::tuple(2, Way::kIpc), std::tuple(3, Way::kIpc),
                    std::tuple(4, Way::kIpc), std::tuple(2, Way::kStaged),
                    std::tuple(3, Way::kStaged), std::tuple(4, Way::kStaged)));

void AskNothing(Rank& /*rank*/, const DeviceElements& /*data*/) {}

TEST_P(CudaLostRankTest, TheOthersEnd) {
  const auto [size, way] = GetParam();
  LostRank job(size, way, 8191);
  job.Run(
      AskNothing,
      [&](Rank& rank, const DeviceElements& data) {
        absl::Status status = rank.Allreduce(job.c(), data);
        for (; status.ok(); std::this_thread::yield()) {
          status = rank.transport->Progress();
        }
        // The error must not be the timeout of a message.
        EXPECT_EQ(status, absl::UnavailableError("a rank is lost"));
        rank.transport->Abort(status);
        EXPECT_EQ(rank.device->Finish(), absl::OkStatus());
      },
      /*depth=*/0);
}

// The host enqueues much work for one tensor; the lost rank's host continues
// until it is lost.
TEST_P(CudaLostRankTest, NorDoesAQueueOfTheGpuRunFull) {
  const auto [size, way] = GetParam();
  LostRank job(size, way, 100'000);
  job.Run(
      AskNothing,
      [&](Rank& rank, const DeviceElements& data) {
        EXPECT_EQ(rank.Allreduce(job.c(), data),
                  absl::UnavailableError("a rank is lost"));
      },
      /*depth=*/500);
}

// Calls of the host after it has enqueued work that waits for the lost rank.
// The driver waits for this work in each of them.
enum class Call { kUpload, kAdasum, kAllocate, kFree };

class CudaLostRankCallTest
    : public testing::TestWithParam<std::tuple<int, Call>> {};
INSTANTIATE_TEST_SUITE_P(
    Calls, CudaLostRankCallTest,
    testing::Combine(testing::Values(2, 3),
                     testing::Values(Call::kUpload, Call::kAdasum,
                                     Call::kAllocate, Call::kFree)));

TEST_P(CudaLostRankCallTest, TheDriverDoesNotWaitForIt) {
  const auto [size, call] = GetParam();
  // This is so little data that no rank waits for the GPU before it is
  // enqueued.
  LostRank job(size, Way::kIpc, 1023);
  const WithFakeCuda waits(&FakeOptions::waits, 1);
  job.Run(
      [&](Rank& rank, const DeviceElements& data) {
        EXPECT_EQ(rank.Allreduce(job.c(), data), absl::OkStatus());
      },
      [&, call = call](Rank& rank, const DeviceElements& data) {
        const Kernels& kernels = rank.device->kernels();
        const std::vector<std::byte> zeros(1 << 10);
        absl::Status status;
        switch (call) {
          case Call::kUpload:
            kernels.Upload(rank.memory, zeros.data(), zeros.size());
            status = kernels.Synchronize();
            break;
          case Call::kAdasum:
            kernels.Adasum(data.data(), data.data(), data.data(), job.c().count,
                           DataType::kFloat32);
            status = kernels.Synchronize();
            break;
          case Call::kAllocate:
            status = kernels.Allocate(1 << 10).status();
            break;
          case Call::kFree:
            kernels.Free(rank.memory);
            return;
        }
        EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
        kernels.Free(rank.memory);
      });
}

// Launches fail after `left` have succeeded, counted from the time when all
// ranks have called this function: creating the transports takes some launches.
// After the first failure no rank can allocate GPU memory.
void FailLaunches(int left, std::atomic<int>& ready, int size) {
  if (++ready == size) {
    FakeCuda()->launches_left = left;
    ++ready;
  }
  Wait(ready, size + 1);
}

// Also runs on one rank, and with a CUDA-aware MPI.
class CudaFailingRankTest
    : public testing::TestWithParam<std::tuple<int, Way>> {};
INSTANTIATE_TEST_SUITE_P(Ways, CudaFailingRankTest,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(Way::kIpc,
                                                          Way::kStaged,
                                                          Way::kCudaAware)));

TEST_P(CudaFailingRankTest, ItsErrorReachesAllRanks) {
  const auto [size, way] = GetParam();
  const WithFakeCuda delay(&FakeOptions::delay_us, 50);
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  std::atomic<int> ready{0}, failed{0};
  const AllreduceCase c{DataType::kFloat32, ReduceOp::kSum, 8191};
  const WithFakeCuda restored(&FakeOptions::launches_left, -1);
  OnGpus(size, OptionsFor(way), way,
         [&, size = size](const CudaDevice& device, Transport& transport,
                          Transport&) {
           GpuRank gpu(device, transport, kSegmentBytes);
           const Elements input =
               AllreduceInput(c.dtype, c.op, c.count, gpu.rank());
           // On one rank nothing is reduced, so the result is scaled.
           AllreduceCase scaled = c;
           if (size == 1) scaled.postscale = 0.5;
           const auto result = gpu.Allreduce(
               scaled, input, /*in_place=*/true,
               [&] { FailLaunches(size == 1 ? 0 : 3 * size, ready, size); });
           EXPECT_THAT(result.status(), HasMessage("CUDA_ERROR_LAUNCH_FAILED"));
           failed += result.ok() ? 0 : 1;
         });
  EXPECT_EQ(failed, size);
}

TEST(CudaFailingPackTest, ItsErrorReachesAllRanks) {
  const WithFakeCuda open_own(&FakeOptions::open_own, 1);
  const WithFakeCuda delay(&FakeOptions::delay_us, 300);
  const WithFakeCuda restored(&FakeOptions::launches_left, -1);
  const SolvedAllreduce c({DataType::kFloat32, ReduceOp::kSum, 5000}, 3);
  std::atomic<int> ready{0}, failed{0};
  const Options options = OptionsFor(Way::kIpc);
  OnGpus(3, options, Way::kIpc,
         [&](const CudaDevice& device, Transport& transport, Transport&) {
           GpuFusion fusion(device, transport, options);
           fusion.CheckAllreduce(c, 10, [&] { FailLaunches(20, ready, 3); });
           EXPECT_THAT(fusion.status(), HasMessage("CUDA_ERROR_LAUNCH_FAILED"));
           ++failed;
           while (failed < 3) std::this_thread::yield();
         });
}

}  // namespace
}  // namespace tfring
