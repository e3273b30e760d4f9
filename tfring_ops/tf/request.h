// From the attributes of a Start op to the engine's words.
#ifndef TFRING_OPS_TF_REQUEST_H_
#define TFRING_OPS_TF_REQUEST_H_

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// The request of a Start op but for the tensors' dimensions, which are not
// known before it runs.
absl::StatusOr<CollectiveRequest> ReadRequest(
    tensorflow::OpKernelConstruction* context, CollectiveKind kind);

}  // namespace tfring

#endif  // TFRING_OPS_TF_REQUEST_H_
