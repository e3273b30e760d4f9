// Converts the attributes of a Start op to the engine's types.
#ifndef TFRING_OPS_TF_REQUEST_H_
#define TFRING_OPS_TF_REQUEST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Reads the request of a Start op, without the dimensions of the tensors, which
// are known only when it runs.
absl::StatusOr<CollectiveRequest> ReadRequest(
    tensorflow::OpKernelConstruction* context, CollectiveKind kind);

// Reads the request of an eager allreduce from its attribute `request`, such as
// "sum 1.0 1.0 float32 0 name": the reduction, the factors before and after it,
// the wire type, the process set, and a name or nothing.
absl::StatusOr<CollectiveRequest> ReadAllreduce(
    tensorflow::OpKernelConstruction* context);

}  // namespace tfring

#endif  // TFRING_OPS_TF_REQUEST_H_
