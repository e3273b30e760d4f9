// Every environment variable that the core knows, read once.
#ifndef TFRING_OPS_BASE_OPTIONS_H_
#define TFRING_OPS_BASE_OPTIONS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// A plain block of numbers: rank 0's copy is sent to every rank when an engine
// starts, because ranks that disagreed on a size would not understand each
// other.
struct Options {
  // TFRING_FUSION_THRESHOLD: small tensors are reduced together in buckets of
  // up to this many bytes.
  int64_t fusion_threshold_bytes = 64 << 20;
  // No setting, nor are the next three, but for tests: a chunk crosses the wire
  // in pieces of this size.
  int64_t segment_bytes = 128 << 10;
  // The same between nodes, as messages take longer there.
  int64_t network_segment_bytes = 512 << 10;
  // How many buckets of host memory are on the wire at once, where ranks are on
  // several nodes; and launched on a device at once, by stream collectives.
  int64_t buckets_in_flight = 2;
  // The size of a piece between the memories of GPUs, where it has to be worth
  // a kernel's launch, and that a neighbour is told of it.
  int64_t device_segment_bytes = 16 << 20;
  // TFRING_CUDA_IPC: GPUs of one node read each other's memory.
  bool cuda_ipc = true;
  // TFRING_GPU_BACKEND: who does the collectives of tensors on GPUs.  kAuto:
  // NCCL, where it can, and the ring where it cannot or bits have to be the
  // same from run to run, which NCCL does not promise.
  enum class GpuBackend : int32_t { kRing, kNccl, kAuto };
  GpuBackend gpu_backend = GpuBackend::kAuto;
  // TFRING_SHARED_MEMORY: ranks of one node talk through shared memory.
  bool shared_memory = true;
  // TFRING_STALL_CHECK_TIME_SECONDS: a tensor that some ranks have submitted
  // and others not is reported after this long, and a silent rank within it.
  double stall_check_seconds = 30;
  // TFRING_STALL_SHUTDOWN_TIME_SECONDS: and fails after this long, as does the
  // job after the silence of a rank; 0 is never.
  double stall_shutdown_seconds = 600;
  // No setting: a rank that is lost is replaced, and so is one that ranks have
  // waited for during stall_shutdown_seconds.
  bool replaces_ranks = false;
  // TFRING_DETERMINISTIC: the same run gives the same bits again.  See Note
  // [Requests that share a message] in engine/negotiation/coordinator.cc.
  bool deterministic = false;
  // TFRING_ALLREDUCE: auto, or the one algorithm to use.  See
  // algorithms/adaptive/cost_model.h.
  AllreduceAlgorithm allreduce = AllreduceAlgorithm::kAuto;
  // No setting, but for tests: so many ranks tell each other of their progress
  // under a cached schedule, and more form a tree.
  int max_progress_peers = 32;
  // TFRING_VERBOSE: rank 0 says what has been measured and chosen.
  bool verbose = false;

  // How long a transport waits for data that does not move: somewhat longer
  // than it takes until every rank has given up one that is silent, which can
  // name the culprit.  0 is for ever.
  static constexpr double kSilenceGraceSeconds = 10;
  double transport_timeout_seconds() const {
    return stall_shutdown_seconds > 0
               ? stall_shutdown_seconds + kSilenceGraceSeconds + 2
               : 0;
  }

  // Defaults, overridden by the environment.  InvalidArgument names a variable
  // with a wrong value.
  static absl::StatusOr<Options> FromEnvironment();
};

}  // namespace tfring

#endif  // TFRING_OPS_BASE_OPTIONS_H_
