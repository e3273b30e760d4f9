// Messages between buffers in the memory of GPUs.
//
// Each pair of ranks has one of three links: CUDA IPC within a node
// (cuda_ipc.h); the host transport itself, if it takes device memory; or
// messages from pinned host memory to pinned host memory (staged.h).
//
// In stream order: an operation is complete when its work is enqueued on the
// device's stream, or the stream no longer takes part in it.  Work enqueued on
// the stream afterwards may use the buffers; other work may do so only after
// the stream has completed it.
#ifndef TFRING_OPS_TRANSPORT_CUDA_CUDA_H_
#define TFRING_OPS_TRANSPORT_CUDA_CUDA_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Collective over the ranks of `host`, which carries the messages that the GPUs
// cannot, and aborts.  If a feature fails on one rank, no rank uses it, and
// rank 0 warns with the reason.
//
// REQUIRES: `device` and `host` outlive the transport; nobody else uses `host`
// while an operation is in flight.
absl::StatusOr<std::unique_ptr<Transport>> MakeCudaTransport(
    const CudaDevice& device, Transport& host, const Options& options);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_CUDA_H_
