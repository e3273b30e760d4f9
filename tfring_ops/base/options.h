// Every environment variable that the core knows, read once.
#ifndef TFRING_OPS_BASE_OPTIONS_H_
#define TFRING_OPS_BASE_OPTIONS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// A plain block of numbers.  Rank 0's copy is sent to every rank when an engine
// starts: ranks with different sizes would misread each other's messages.
struct Options {
  // TFRING_FUSION_THRESHOLD: small tensors are reduced together in buckets of
  // up to this many bytes.
  int64_t fusion_threshold_bytes = 64 << 20;
  // Messages within a node carry this many bytes of a chunk.  Only tests set
  // this and the next three.
  int64_t segment_bytes = 128 << 10;
  // Segment size between nodes.  It is larger because each message costs more
  // there.
  int64_t network_segment_bytes = 512 << 10;
  // The number of buckets of host memory on the wire at once, if ranks are on
  // several nodes, and of buckets that stream collectives have launched on a
  // device.
  int64_t buckets_in_flight = 2;
  // Segment size between GPUs: large enough to amortize a kernel launch and a
  // notification.
  int64_t device_segment_bytes = 16 << 20;
  // TFRING_CUDA_IPC: GPUs of one node read each other's memory.
  bool cuda_ipc = true;
  // TFRING_GPU_BACKEND: what runs the collectives of tensors on GPUs.  kAuto
  // takes NCCL where it is available.  It takes the ring elsewhere, and where
  // runs must give the same bits, which NCCL does not promise.
  enum class GpuBackend : int32_t { kRing, kNccl, kAuto };
  GpuBackend gpu_backend = GpuBackend::kAuto;
  // TFRING_SHARED_MEMORY: ranks of one node communicate through shared memory.
  bool shared_memory = true;
  // TFRING_STALL_CHECK_TIME_SECONDS: a tensor that only some ranks have
  // submitted is reported after this long, and a silent rank at the latest by
  // then.
  double stall_check_seconds = 30;
  // TFRING_STALL_SHUTDOWN_TIME_SECONDS: such a tensor fails after this long,
  // and the job after a rank has been silent for this long; 0 means never.
  double stall_shutdown_seconds = 600;
  // Not a setting: elastic jobs replace a rank that is lost, and one for which
  // ranks have waited for stall_shutdown_seconds.
  bool replaces_ranks = false;
  // TFRING_DETERMINISTIC: a repeated run gives the same bits.  See Note
  // [Requests that share a message] in engine/negotiation/coordinator.cc.
  bool deterministic = false;
  // TFRING_ALLREDUCE: auto, or the name of the one algorithm to use.  See
  // algorithms/adaptive/cost_model.h.
  AllreduceAlgorithm allreduce = AllreduceAlgorithm::kAuto;
  // Under a cached schedule, up to this many ranks report their progress to
  // each other directly, and more ranks form a tree.  Only tests set it.
  int max_progress_peers = 32;
  // TFRING_VERBOSE: rank 0 logs what it has measured and chosen.
  bool verbose = false;

  // How long a transport waits for data that does not move; 0 means no limit.
  // It is somewhat longer than it takes until every rank has given up a silent
  // one, because that error names the culprit.
  static constexpr double kSilenceGraceSeconds = 10;
  double transport_timeout_seconds() const {
    return stall_shutdown_seconds > 0
               ? stall_shutdown_seconds + kSilenceGraceSeconds + 2
               : 0;
  }

  // Returns the defaults, overridden by the environment.  InvalidArgument names
  // a variable with a wrong value.
  static absl::StatusOr<Options> FromEnvironment();
};

}  // namespace tfring

#endif  // TFRING_OPS_BASE_OPTIONS_H_
