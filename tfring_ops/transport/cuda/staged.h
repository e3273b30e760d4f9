// Messages between GPUs through the host's transport: for ranks of different
// nodes, and for ranks of one node without CUDA IPC.  Threads of the host copy
// every byte in and out of the transport.
#ifndef TFRING_OPS_TRANSPORT_CUDA_STAGED_H_
#define TFRING_OPS_TRANSPORT_CUDA_STAGED_H_

#include <memory>

#include "tfring_ops/transport/cuda/cuda_link.h"

namespace tfring {

// Returns a link through slots in pinned host memory: one part is copied from
// the GPU while another is on the wire and a third is copied to the GPU.
// REQUIRES: `context` outlives the link.
std::unique_ptr<CudaLink> MakeStagedLink(const CudaLinkContext& context,
                                         int peer);

// Returns a link in which the host's transport accesses the GPU's memory
// itself, once the stream has done the earlier work.
// REQUIRES: `context` outlives the link.
std::unique_ptr<CudaLink> MakeCudaAwareLink(const CudaLinkContext& context,
                                            int peer);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_STAGED_H_
