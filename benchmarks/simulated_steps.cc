// Whole steps of many ranks in simulated time, for docs/scaling.md: gradients
// become ready while backpropagation goes on, and engines fuse and reduce them.
// The engines are real; the network is that of tests/cpp/simulated_job.h.
//
//   simulated_steps RANKS BACKPROP_MS < sizes
//
// The sizes are the bytes of the gradients, in the order in which they become
// ready, at a steady rate of bytes.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/cpp/simulated_engine.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_kernels.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/engine.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {
namespace {

constexpr int kRanksPerNode = 8;
constexpr SimulatedLink kMemory{2e-6, 8e9}, kHundredGbits{20e-6, 12.5e9};
constexpr double kReducedBytesPerSecond = 10e9;
// The time of a rank for each message that it sends or receives.
constexpr double kHandlingSeconds = 1e-6;
constexpr int kSteps = 4;

class Steps {
 public:
  Steps(int ranks, double backprop_seconds, std::vector<int64_t> gradients)
      : backprop_seconds_(backprop_seconds),
        gradients_(std::move(gradients)),
        bytes_(
            std::accumulate(gradients_.begin(), gradients_.end(), int64_t{0})),
        job_(NetworkOf(ranks)),
        kernels_([this](double seconds) { job_.Sleep(seconds); },
                 kReducedBytesPerSecond,
                 std::max(bytes_, Options().fusion_threshold_bytes)) {
    job_.LeaveOut(kernels_.shared_memory());
  }

  // Prints, for each step, how long it takes the last rank.
  absl::Status Run() {
    const auto seconds = job_.Run([&](Transport& /*transport*/) {
      auto engine = StartEngine(job_, Options(), kernels_);
      TFRING_RETURN_IF_ERROR(engine.status());
      for (Step& step : steps_) {
        TFRING_RETURN_IF_ERROR(RunStep(**engine, step));
      }
      (*engine)->Shutdown();
      Work(**engine, job_, [] { return false; });
      return absl::OkStatus();
    });
    for (const Step& step : steps_) {
      std::printf("%10.2f", (step.end - step.begin) * 1e3);
    }
    std::printf("\n");
    return seconds.status();
  }

 private:
  struct Step {
    double begin = kNever, end = 0;
  };

  static SimulatedNetwork NetworkOf(int ranks) {
    SimulatedNetwork network;
    network.nodes = ranks / kRanksPerNode;
    network.ranks_per_node = kRanksPerNode;
    network.within = kMemory;
    network.across = kHundredGbits;
    network.handling_seconds = kHandlingSeconds;
    return network;
  }

  absl::Status RunStep(Engine& engine, Step& step) {
    const double begin = job_.now();
    step.begin = std::min(step.begin, begin);
    size_t left = gradients_.size();
    absl::Status status;
    int64_t ready = 0;
    std::byte* memory = kernels_.shared_memory().data();
    for (size_t i = 0; i < gradients_.size(); ++i) {
      ready += gradients_[i];
      TensorEntry entry;
      entry.request.name = "gradient " + std::to_string(i);
      entry.request.tensors = {{entry.request.name, {gradients_[i] / 4}}};
      entry.buffers = {{memory, memory}};
      entry.done = [&left, &status](const absl::Status& of_entry) {
        --left;
        status.Update(of_entry);
      };
      memory += gradients_[i];
      const double share = static_cast<double>(ready) / bytes_;
      job_.At(begin + share * backprop_seconds_,
              [&engine, entry] { engine.Submit(entry); });
    }
    Work(engine, job_, [&left] { return left == 0; });
    step.end = std::max(step.end, job_.now());
    return status;
  }

  const double backprop_seconds_;
  const std::vector<int64_t> gradients_;
  const int64_t bytes_;
  SimulatedJob job_;
  const SimulatedKernels kernels_;
  Step steps_[kSteps];
};

}  // namespace
}  // namespace tfring

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: simulated_steps RANKS BACKPROP_MS < sizes\n");
    return 2;
  }
  std::vector<int64_t> gradients;
  for (int64_t bytes; std::cin >> bytes;) gradients.push_back(bytes);
  tfring::Steps steps(std::atoi(argv[1]), std::atof(argv[2]) * 1e-3,
                      std::move(gradients));
  const absl::Status status = steps.Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
