// The base of the Start ops' kernels, on the CPU and on GPUs.  Conversion only:
// from tensors to a TensorEntry.
#ifndef TFRING_OPS_TF_START_OP_H_
#define TFRING_OPS_TF_START_OP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/runtime/handles.h"
#include "tfring_ops/runtime/stream_order.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/entry_tensors.h"

namespace tfring {

// Returns a label such as "broadcast of 'x'".  A request that the engine will
// name has no name yet.
std::string LabelOf(const CollectiveRequest& request, int index);

// Returns an error if the share of tensor `index` does not have `expected`
// elements, because the ranks have changed since the function was traced.
absl::Status CheckShare(const CollectiveRequest& request, int index,
                        int64_t count, int64_t expected);

// Returns an entry with the request of a collective and the shapes of the
// kernel's inputs.
TensorEntry NewEntry(tensorflow::OpKernelContext* context,
                     const CollectiveRequest& request);

// Returns an entry whose results have the inputs' shapes and are the kernel's
// first outputs.  An input that nobody else holds is reused for its output.
absl::StatusOr<TensorEntry> NewInPlaceEntry(
    tensorflow::OpKernelContext* context, const CollectiveRequest& request,
    EntryTensors& tensors);

// Returns the order between the kernel's stream and the engine's, in which
// `entry` takes part; null on the host.
absl::StatusOr<std::shared_ptr<StreamOrder>> StreamOrderOf(
    tensorflow::OpKernelContext* context, TensorEntry& entry);

class StartOp : public tensorflow::OpKernel {
 public:
  StartOp(tensorflow::OpKernelConstruction* context, CollectiveKind kind);

 protected:
  int count() const { return static_cast<int>(request_.tensors.size()); }
  const CollectiveRequest& request() const { return request_; }

  // Submits `entry`, and makes the handle, which is output number `index`.
  // REQUIRES: all outputs whose shapes are known have been allocated.
  void Start(tensorflow::OpKernelContext* context, int index, TensorEntry entry,
             std::shared_ptr<EntryTensors> tensors) const;

 private:
  CollectiveRequest request_;
};

// Lets the engine allocate the outputs, into tensors->gathered, when their
// shapes are known.
void AllocateWhenKnown(tensorflow::OpKernelContext* context, TensorEntry& entry,
                       const std::shared_ptr<EntryTensors>& tensors);

tensorflow::Tensor Int64Scalar(int64_t value);

}  // namespace tfring

// Builds the kernel of a Start on GPUs, without the type.
#define TFRING_START_ON_GPU(NAME)     \
  Name(NAME)                          \
      .Device(tensorflow::DEVICE_GPU) \
      .HostMemory("prev")             \
      .HostMemory("handle")

// Registers the kernel of a Start of tensors on the CPU and on GPUs.
#define TFRING_REGISTER_START(NAME, KERNEL)                                   \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_CPU), KERNEL); \
  REGISTER_KERNEL_BUILDER(                                                    \
      TFRING_START_ON_GPU(NAME).TypeConstraint("T", tfring::kTypesOnGpu),     \
      KERNEL)

#endif  // TFRING_OPS_TF_START_OP_H_
