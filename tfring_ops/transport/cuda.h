// Messages between buffers in the memory of GPUs.
//
// Each pair of ranks has one of three ways: CUDA IPC within a node
// (cuda_ipc.h); the host transport itself, where it takes device memory; or
// pinned host memory (staged.h).
//
// In stream order: a request is complete when the device's stream has been
// asked for it, or has no more to do with it.  Buffers may be touched by what
// the stream is asked for afterwards, and by nobody else before the stream has
// come so far.
#ifndef TFRING_OPS_TRANSPORT_CUDA_H_
#define TFRING_OPS_TRANSPORT_CUDA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Collective over the ranks of `host`, which carries what the GPUs cannot, and
// aborts.  Where something fails on one rank, all do without it, and rank 0
// says why in a warning.
//
// REQUIRES: `device` and `host` outlive the transport; nobody else uses
// `host` while a request is under way.
absl::StatusOr<std::unique_ptr<Transport>> MakeCudaTransport(
    const CudaDevice& device, Transport& host, const Options& options);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_H_
