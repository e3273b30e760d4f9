// TfringAfterStart, on the CPU and on GPUs: passes a tensor on, uncopied.
#include "tensorflow/core/framework/op_kernel.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/op_definitions.h"

namespace tfring {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_GPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

// `y` is `x`, once the Start that gave `handle` has run; see Note [Control
// dependencies on starts] in tfring/_gradients/overlap.py.  Not stateful: it
// does not depend on the order of stateful ops, and a handle is never a
// constant.
REGISTER_OP("TfringAfterStart")
    .Input("x: T")
    .Input("handle: int64")
    .Output("y: T")
    .Attr("T: {" TFRING_FOR_EACH_FLOAT(TFRING_DTYPE_NAME) "}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

class AfterStartOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    context->set_output(0, context->input(0));
  }

  // The op runs on the thread that computes its last input, and takes no thread
  // of its own.
  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("TfringAfterStart").Device(DEVICE_CPU),
                        AfterStartOp);

REGISTER_KERNEL_BUILDER(Name("TfringAfterStart")
                            .Device(DEVICE_GPU)
                            .HostMemory("handle")
                            .TypeConstraint("T", kFloats),
                        AfterStartOp);

}  // namespace
}  // namespace tfring
