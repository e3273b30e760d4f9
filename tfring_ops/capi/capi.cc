#include "tfring_ops/capi/capi.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tfring_ops/base/options.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/capi/global_engine.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/transport/mpi.h"

namespace tfring {
namespace {

// Leaked, like all that other threads may use while the process ends.
std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::shared_ptr<Engine>& Slot() {
  static auto* engine = new std::shared_ptr<Engine>;
  return *engine;
}

absl::StatusOr<std::unique_ptr<Engine>> StartEngine(int32_t comm) {
  TFRING_ASSIGN_OR_RETURN(const Options options, Options::FromEnvironment());
  ProcessSet world;
  TFRING_ASSIGN_OR_RETURN(
      world.control, MakeMpiTransport(comm, options.stall_shutdown_seconds));
  TFRING_ASSIGN_OR_RETURN(
      world.data, MakeMpiTransport(comm, options.stall_shutdown_seconds));
  return Engine::Start(options, std::move(world), CpuKernels());
}

}  // namespace

std::shared_ptr<Engine> GlobalEngine() {
  std::lock_guard<std::mutex> lock(Mutex());
  return Slot();
}

void SubmitToGlobalEngine(TensorEntry entry) {
  if (const std::shared_ptr<Engine> engine = GlobalEngine()) {
    engine->Submit(std::move(entry));
  } else {
    entry.done(absl::FailedPreconditionError(
        "tfring is not initialized. Call tfring.init() first."));
  }
}

}  // namespace tfring

const char* tfring_init(int32_t comm) {
  static thread_local std::string error;
  absl::StatusOr<std::unique_ptr<tfring::Engine>> engine =
      tfring::StartEngine(comm);
  if (!engine.ok()) {
    error = std::string(engine.status().message());
    return error.c_str();
  }
  std::lock_guard<std::mutex> lock(tfring::Mutex());
  tfring::Slot() = *std::move(engine);
  return nullptr;
}

void tfring_shutdown() {
  std::shared_ptr<tfring::Engine> engine;
  {
    std::lock_guard<std::mutex> lock(tfring::Mutex());
    engine = std::move(tfring::Slot());
  }
  // Here, as the last owner may be a thread that outlives MPI.
  if (engine != nullptr) engine->Shutdown();
}

int64_t tfring_fusion_threshold_bytes() {
  const std::shared_ptr<tfring::Engine> engine = tfring::GlobalEngine();
  return engine == nullptr ? -1 : engine->options().fusion_threshold_bytes;
}

const char* tfring_mpi_build_version() {
  static const auto* version = new std::string(tfring::MpiBuildVersion());
  return version->c_str();
}
