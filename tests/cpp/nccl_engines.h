// Engines that use NCCL, with work on another stream of each GPU before and
// after.
#ifndef TESTS_CPP_NCCL_ENGINES_H_
#define TESTS_CPP_NCCL_ENGINES_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_ranks.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/runtime/device_lane.h"

namespace tfring {

// A tensor on a rank's GPU, which the null stream writes before the collective,
// and another one reads after it.
class StreamedTensor {
 public:
  static constexpr int64_t kCount = 20'000;

  explicit StreamedTensor(int rank) : StreamedTensor(rank, rank) {}
  // `rank` is the rank in a process set.
  StreamedTensor(int rank, int gpu, int64_t count = kCount)
      : count_(count),
        gpu_(OpenGpu(gpu)),
        source_(*gpu_, AllreduceInput(DataType::kFloat32, ReduceOp::kSum,
                                      count_, rank)),
        data_(*gpu_, Elements(bytes())),
        written_(*CudaEvent::Create(*gpu_)),
        reduced_(*CudaEvent::Create(*gpu_)) {}

  // The rank sleeps for `pause` before it launches the collective.
  void SubmitTo(Engine& engine, const std::string& name = "gradient",
                std::chrono::microseconds pause = {}) {
    TensorEntry entry;
    entry.request.name = name;
    entry.request.device = gpu_->ordinal();
    entry.request.tensors = {{"", {count_}}};
    entry.buffers = {{data_.data(), data_.data()}};
    entry.on_start = [this, pause](void* stream) {
      std::this_thread::sleep_for(pause);
      return written_->Await(stream);
    };
    entry.on_finish = [this](void* stream) {
      TFRING_RETURN_IF_ERROR(reduced_->Record(stream));
      return reduced_->Await(gpu_->stream());
    };
    entry.done = [this](const absl::Status& status) { outcome.Done(status); };
    const CudaDriver& driver = **CudaDriver::Get();
    const CudaScope scope(driver, gpu_->context());
    EXPECT_EQ(driver.cuMemcpyDtoDAsync(DeviceAddress(data_.data()),
                                       DeviceAddress(source_.data()), bytes(),
                                       nullptr),
              absl::OkStatus());
    EXPECT_EQ(written_->Record(nullptr), absl::OkStatus());
    if (change) change(entry);
    engine.Submit(std::move(entry));
  }

  bool IsSumOver(int size) const {
    return data_.Download() ==
           AllreduceOutput(DataType::kFloat32, ReduceOp::kSum, count_, size);
  }

  std::function<void(TensorEntry&)> change;  // before it is submitted
  Completion outcome;

 private:
  int64_t bytes() const { return count_ * static_cast<int64_t>(sizeof(float)); }

  const int64_t count_;
  const std::unique_ptr<CudaDevice> gpu_;
  const DeviceElements source_, data_;
  const std::unique_ptr<CudaEvent> written_, reduced_;
};

// Whose ranks have a GPU each, and wait by these clocks.
inline std::unique_ptr<Job> MakeNcclJob(int size, const Options& options,
                                        const RankClocks& clocks) {
  return std::make_unique<Job>(
      size,
      [&clocks](int rank, ProcessSet& set) {
        set.clock = &clocks.of(rank);
        LaunchPlace place;
        place.clock = set.clock;
        set.make_device_lane = [place](const Options& of_rank_0, int32_t device,
                                       Transport& data) {
          return MakeDeviceLane(of_rank_0, device, data, place);
        };
      },
      options);
}

// The status of a rank, and if its result is right.
struct NcclOutcome {
  absl::Status status;
  bool is_right;
};

// A stream that is held back resumes when the GPUs do nothing without it.
inline std::vector<NcclOutcome> AllreduceByNccl(int size) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, size);
  RankClocks clocks(size);
  const std::unique_ptr<Job> job = MakeNcclJob(size, NcclOptions(), clocks);
  const int before = FakeNccl()->launched;
  std::vector<std::unique_ptr<StreamedTensor>> tensors;
  for (int rank = 0; rank < size; ++rank) {
    tensors.push_back(std::make_unique<StreamedTensor>(rank));
    tensors.back()->SubmitTo(job->engine(rank));
  }
  if (FakeCuda()->held != 0) {
    EXPECT_TRUE(Await([&] { return FakeNccl()->launched >= before + size; }));
    AwaitQuietGpus();
    FakeCuda()->held = 0;
  }
  std::vector<NcclOutcome> outcomes;
  for (const auto& tensor : tensors) {
    const absl::Status status = tensor->outcome.Wait();
    outcomes.push_back({status, status.ok() && tensor->IsSumOver(size)});
  }
  job->Shutdown();
  return outcomes;
}

}  // namespace tfring

#endif  // TESTS_CPP_NCCL_ENGINES_H_
