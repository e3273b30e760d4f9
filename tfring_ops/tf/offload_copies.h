// Copies between a tensor, on the device of a kernel, and a tier.
#ifndef TFRING_OPS_TF_OFFLOAD_COPIES_H_
#define TFRING_OPS_TF_OFFLOAD_COPIES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfring_ops/offload/copier.h"
#include "tfring_ops/offload/plan.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {

// A place for a tensor of so many bytes, in the plan's tier for the kernel's
// device.
absl::StatusOr<std::unique_ptr<Tier::Slot>> AllocateSlot(
    tensorflow::OpKernelContext* context, Plan& plan, int64_t bytes);

// Copies from or to a slot for the kernel's device.  Both must stay until
// `done` is called, and the memory of `tensor` is nobody else's.
void CopyTensor(tensorflow::OpKernelContext* context,
                Copier::Direction direction, const tensorflow::Tensor& tensor,
                Tier::Slot* slot, Copier::Done done);

}  // namespace tfring

#endif  // TFRING_OPS_TF_OFFLOAD_COPIES_H_
