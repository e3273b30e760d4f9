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

// The same for the op of an eager allreduce, whose attribute `request` is
// "sum 1.0 1.0 float32 0 name": the reduction, the factors before and after it,
// the wire type, the process set, and a name or nothing.
absl::StatusOr<CollectiveRequest> ReadAllreduce(
    tensorflow::OpKernelConstruction* context);

}  // namespace tfring

#endif  // TFRING_OPS_TF_REQUEST_H_
