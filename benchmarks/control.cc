// The negotiation of a step in simulated time, for docs/scaling.md: how long
// after all ranks have submitted their gradients the last of them knows that
// all have.  The negotiators and their messages are real; the network is that
// of tests/cpp/simulated_job.h.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_negotiator.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {
namespace {

using Computation = SimulatedNegotiator::Computation;

constexpr int kRanksPerNode = 8;
// The time of a rank for each message that it sends or receives, where its
// computation is free.
constexpr double kHandlingSeconds = 1e-6;
constexpr size_t kGradients = 200;
constexpr int kSteps = 20;

// A step's gradients: dense; or sparse, with other rows on each rank and in
// each step.
enum class Kind { kDense, kSparse };

std::vector<CollectiveRequest> Gradients(Kind kind, int rank, int step) {
  std::vector<CollectiveRequest> requests(kGradients);
  for (size_t i = 0; i < kGradients; ++i) {
    CollectiveRequest& request = requests[i];
    request.name = "gradient " + std::to_string(i);
    request.tensors = {{request.name, {100'000}}};
    if (kind == Kind::kDense) continue;
    request.kind = CollectiveKind::kAllgather;
    request.tensors[0].dims = {1000 + rank + step, 64};
  }
  return requests;
}

// The steps of a job.
class Steps {
 public:
  Steps(int size, Kind kind, Computation computation)
      : job_(NetworkOf(size, computation)),
        members_(size),
        kind_(kind),
        computation_(computation),
        negotiators_(size) {
    options_.stall_check_seconds = options_.stall_shutdown_seconds = 0;
  }

  // Returns the seconds that the next step takes.
  double Run() {
    const double begin = job_.now();
    double end = begin;
    const auto status = job_.Run([&](Transport& transport) {
      const absl::Status of_rank = Run(transport);
      end = std::max(end, job_.now());
      return of_rank;
    });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.status().ToString().c_str());
      std::exit(1);
    }
    ++step_;
    return end - begin;
  }

 private:
  static SimulatedNetwork NetworkOf(int size, Computation computation) {
    SimulatedNetwork network;
    network.nodes = size / kRanksPerNode;
    network.ranks_per_node = kRanksPerNode;
    if (computation == Computation::kIsFree) {
      network.handling_seconds = kHandlingSeconds;
    }
    return network;
  }

  absl::Status Run(Transport& transport) {
    auto& negotiator = negotiators_[transport.rank()];
    if (negotiator == nullptr) {
      negotiator = std::make_unique<SimulatedNegotiator>(
          options_, members_, transport, job_, computation_);
    }
    size_t agreed = 0;
    return negotiator->Run(Gradients(kind_, transport.rank(), step_),
                           /*shutdown=*/false, [&](const ResponseList& list) {
                             for (const Response& response : list.responses) {
                               agreed += response.names.size();
                             }
                             return agreed == kGradients;
                           });
  }

  SimulatedJob job_;
  Options options_;
  const Members members_;
  const Kind kind_;
  const Computation computation_;
  std::vector<std::unique_ptr<SimulatedNegotiator>> negotiators_;
  int step_ = 0;
};

// The first step, the one that begins the cached schedule, and the fastest of
// those that repeat it.
void Print(int size, Kind kind) {
  std::printf("| %d | %s |", size, kind == Kind::kDense ? "dense" : "sparse");
  for (const Computation computation :
       {Computation::kIsFree, Computation::kTakesTime}) {
    Steps steps(size, kind, computation);
    const double first = steps.Run(), second = steps.Run();
    double repeated = steps.Run();
    for (int step = 3; step < kSteps; ++step) {
      repeated = std::min(repeated, steps.Run());
    }
    std::printf(" %.3f | %.3f | %.3f |", first * 1e3, second * 1e3,
                repeated * 1e3);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace tfring

// The numbers of ranks, in eights, may be given.
int main(int argc, char** argv) {
  std::vector<int> sizes{8, 32, 64, 512, 1024};
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  std::puts(
      "| ranks | gradients | first step, ms | second | repeated | first, with "
      "computation | second | repeated |");
  std::puts("|---|---|---|---|---|---|---|---|");
  for (const int size : sizes) {
    tfring::Print(size, tfring::Kind::kDense);
    // All ranks' sizes on all ranks are more than one machine has room for.
    if (size <= 64) tfring::Print(size, tfring::Kind::kSparse);
  }
}
