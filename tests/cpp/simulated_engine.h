// The engine of a rank of a simulated job.  It has no thread: the rank's fiber
// lets it work.
#ifndef TFRING_TESTS_CPP_SIMULATED_ENGINE_H_
#define TFRING_TESTS_CPP_SIMULATED_ENGINE_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "tests/cpp/simulated_job.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/engine.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// How long an engine without work waits for news before it looks at the time.
inline constexpr double kIdleSeconds = 0.02;

// Starts the engine of the rank that runs.  Collective.
inline absl::StatusOr<std::unique_ptr<Engine>> StartEngine(
    SimulatedJob& job, const Options& options, const Kernels& kernels) {
  ProcessSet process_set;
  process_set.control = job.Take(1);
  process_set.data = job.Take(2);
  process_set.clock = &job.clock();
  process_set.has_thread = false;
  return Engine::Start(options, std::move(process_set), kernels);
}

// Lets the engine of the rank that runs work until is_done() or the engine
// ends.
template <typename Condition>
void Work(Engine& engine, SimulatedJob& job, const Condition& is_done) {
  while (!is_done()) {
    const double begin = job.now();
    const Found found = engine.Look();
    if (found == Found::kEnd) return;
    if (found == Found::kNothing) job.Pause(begin, kIdleSeconds);
  }
}

}  // namespace tfring

#endif  // TFRING_TESTS_CPP_SIMULATED_ENGINE_H_
