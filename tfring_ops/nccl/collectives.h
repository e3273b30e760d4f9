// Collectives by NCCL, unless TFRING_GPU_BACKEND asks for the ring.
#ifndef TFRING_OPS_NCCL_COLLECTIVES_H_
#define TFRING_OPS_NCCL_COLLECTIVES_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/algorithms/stream_collectives.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/nccl/launch_order.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Returns null if the ring does the work.  Collective over the ranks of `host`,
// with the same result on all.  NCCL is used if each rank has it and a GPU of
// its own.  Otherwise kNccl is an error that says why, and kAuto is the ring.
// kAuto is also the ring for one rank and for deterministic results.  `place`
// is the place of these ranks' collectives among those of other process sets.
// REQUIRES: `device` and `host` outlive the result.
absl::StatusOr<std::unique_ptr<StreamCollectives>> MakeNcclCollectives(
    const CudaDevice& device, Transport& host, const Options& options,
    LaunchPlace place = {});

}  // namespace tfring

#endif  // TFRING_OPS_NCCL_COLLECTIVES_H_
