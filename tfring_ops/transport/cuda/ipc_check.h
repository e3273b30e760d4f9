// Checks the first data that travels from GPU to GPU by CUDA IPC.
//
// Note [Kernels read otherwise than copies]
// Copies and kernels reach another GPU's memory in different ways.  One may be
// sound and one not, and a sound start of the memory does not prove the rest.
// So the check does the real work: copies, and reductions of megabytes with
// operands in all the slots of the peers.
#ifndef TFRING_OPS_TRANSPORT_CUDA_IPC_CHECK_H_
#define TFRING_OPS_TRANSPORT_CUDA_IPC_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/transport/cuda/cuda_links.h"

namespace tfring {

// Exchanges data with `peers`; `links` has links to them.  The inner status
// says if it has arrived; the outer one is an error of the exchange.
// Collective over the ranks of the node.
absl::StatusOr<absl::Status> CheckIpc(CudaLinks& links,
                                      const std::vector<int>& peers,
                                      const Kernels& kernels);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_IPC_CHECK_H_
