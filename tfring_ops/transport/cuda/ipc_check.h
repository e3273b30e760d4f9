// The first data that goes from GPU to GPU by CUDA IPC, which is checked.
//
// Note [Kernels read otherwise than copies]
// The engine that copies and the processors that run kernels reach another
// GPU's memory by ways of their own, of which one may be sound and the other
// not, and what holds for the first bytes of the memory need not hold for all.
// So what is checked is what will be done: copies, and reductions of megabytes
// whose operands lie in all the slots of the peers.
#ifndef TFRING_OPS_TRANSPORT_CUDA_IPC_CHECK_H_
#define TFRING_OPS_TRANSPORT_CUDA_IPC_CHECK_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/transport/cuda/cuda_links.h"

namespace tfring {

// Exchanges data with `peers`, to which `links` has opened links.  The inner
// status says if it has arrived; the outer one is an error of the exchange.
// Collective over the ranks of the node.
absl::StatusOr<absl::Status> CheckIpc(CudaLinks& links,
                                      const std::vector<int>& peers,
                                      const Kernels& kernels);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_IPC_CHECK_H_
