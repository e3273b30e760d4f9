// Whole engines in simulated time: buckets that overlap with a computation, a
// rank that is late, and one that is lost.
#include "tests/cpp/simulated_engine.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpp/simulated_job.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/engine.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kGradients = 10;
constexpr size_t kCount = 25'000;  // floats of a gradient

SimulatedNetwork Network() {
  SimulatedNetwork network;
  network.nodes = 4;
  network.ranks_per_node = 4;
  return network;
}

// A rank's gradients of a step, all of whose elements are `value`.
class Gradients {
 public:
  explicit Gradients(float value)
      : data_(kGradients, std::vector<float>(kCount, value)) {}

  void Submit(int i, Engine& engine) {
    TensorEntry entry;
    entry.request.name = "gradient " + std::to_string(i);
    entry.request.tensors = {{entry.request.name, {int64_t{kCount}}}};
    entry.buffers = {{data_[i].data(), data_[i].data()}};
    entry.done = [this](const absl::Status& status) {
      ++done_;
      status_.Update(status);
    };
    engine.Submit(std::move(entry));
  }

  bool are_done() const { return done_ == kGradients; }
  const absl::Status& status() const { return status_; }
  bool AreAll(float value) const {
    return std::all_of(data_.begin(), data_.end(), [value](const auto& each) {
      return each == std::vector<float>(kCount, value);
    });
  }

 private:
  std::vector<std::vector<float>> data_;
  int done_ = 0;
  absl::Status status_;
};

class SimulatedEngineTest : public testing::Test {
 protected:
  struct Step {
    // The time between two gradients of a rank.  A late rank pauses for
    // `late_seconds` before its first.
    double computation_seconds = 0;
    int late_rank = -1;
    double late_seconds = 0;
  };

  SimulatedEngineTest() { options_.fusion_threshold_bytes = 300'000; }

  // Runs steps on all ranks, and returns the seconds of the last one, from the
  // first gradient to the last sum on any rank.
  absl::StatusOr<double> Run(SimulatedJob& job, int steps, const Step& step) {
    double begin = 0, end = 0;
    status_.assign(job.size(), absl::UnknownError("no engine"));
    const absl::StatusOr<double> ran = job.Run([&](Transport& transport) {
      const int rank = transport.rank();
      auto started = StartEngine(job, options_, CpuKernels());
      TFRING_RETURN_IF_ERROR(started.status());
      Engine& engine = **started;
      for (int i = 0; i < steps; ++i) {
        begin = job.now();
        status_[rank] = RunStep(job, engine, rank, step);
        end = std::max(end, job.now());
        if (!status_[rank].ok()) break;
      }
      engine.Shutdown();
      Work(engine, job, [] { return false; });
      return absl::OkStatus();
    });
    TFRING_RETURN_IF_ERROR(ran.status());
    return end - begin;
  }

  absl::Status RunStep(SimulatedJob& job, Engine& engine, int rank,
                       const Step& step) {
    Gradients gradients(static_cast<float>(rank));
    const double late = rank == step.late_rank ? step.late_seconds : 0;
    for (int i = 0; i < kGradients; ++i) {
      job.At(job.now() + late + i * step.computation_seconds,
             [&gradients, &engine, i] { gradients.Submit(i, engine); });
    }
    Work(engine, job, [&gradients] { return gradients.are_done(); });
    // After the engine has ended nothing is submitted, because its rank ends
    // too.
    if (!gradients.are_done()) return engine.ended();
    if (!gradients.status().ok()) return gradients.status();
    const auto sum = static_cast<float>(job.size() * (job.size() - 1) / 2);
    return gradients.AreAll(sum) ? absl::OkStatus()
                                 : absl::DataLossError("a wrong sum");
  }

  Options options_;
  std::vector<absl::Status> status_;  // by rank
};

TEST_F(SimulatedEngineTest, RanksGetTheSum) {
  SimulatedJob job(Network()), again(Network());
  const absl::StatusOr<double> seconds = Run(job, 3, {});
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_THAT(status_, Each(absl::OkStatus()));
  // Costs are measured in simulated time, too.
  EXPECT_EQ(*Run(again, 3, {}), *seconds);
}

TEST_F(SimulatedEngineTest, BucketsOverlapWithTheComputation) {
  SimulatedJob apart(Network()), together(Network());
  const double alone = *Run(apart, 3, {});
  const double computation = alone / kGradients;
  Step step;
  step.computation_seconds = computation;
  const double both = *Run(together, 3, step);
  EXPECT_THAT(status_, Each(absl::OkStatus()));
  // The last gradient comes when nine tenths of the others' time are over.
  EXPECT_LT(both, (kGradients - 1) * computation + 0.6 * alone);
}

TEST_F(SimulatedEngineTest, ALateRankIsWaitedForAndNamed) {
  options_.stall_check_seconds = 1;
  SimulatedJob job(Network());
  Step step;
  step.late_rank = 5;
  step.late_seconds = 3;
  testing::internal::CaptureStderr();
  const absl::StatusOr<double> seconds = Run(job, 1, step);
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_THAT(status_, Each(absl::OkStatus()));
  EXPECT_GT(*seconds, 3);
  EXPECT_LT(*seconds, 3.1);
  EXPECT_THAT(said, AllOf(HasSubstr("gradient 0"), HasSubstr("rank 5")));
}

TEST_F(SimulatedEngineTest, ALostRankFailsTheSteps) {
  SimulatedJob job(Network());
  Step step;
  step.computation_seconds = 1e-3;
  job.Kill(6, 0.05);
  EXPECT_TRUE(Run(job, 1000, step).ok());
  EXPECT_LT(job.now(), 0.051);
  status_.erase(status_.begin() + 6);
  for (const absl::Status& status : status_) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 6"));
  }
}

}  // namespace
}  // namespace tfring
