// Reads and writes consecutive elements of a tensor.  The ops are made for XLA
// (Note [Shares in place] in xla/lowering.cc), so outside of XLA they run only
// on the CPU.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/op_definitions.h"

namespace tfring {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

// `share` has the `count` elements of `whole` that begin at element `begin`.
REGISTER_OP("TfringReadShare")
    .Input("whole: T")
    .Output("share: T")
    .Attr(TFRING_DTYPES)
    .Attr("begin: int >= 0")
    .Attr("count: int >= 0")
    .SetShapeFn([](InferenceContext* context) {
      int64_t count = 0;
      TF_RETURN_IF_ERROR(context->GetAttr("count", &count));
      context->set_output(0, context->Vector(count));
      return absl::OkStatus();
    });

class ReadShareOp : public OpKernel {
 public:
  explicit ReadShareOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("begin", &begin_));
    OP_REQUIRES_OK(context, context->GetAttr("count", &count_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& whole = context->input(0);
    OP_REQUIRES(context, begin_ + count_ <= whole.NumElements(),
                absl::InvalidArgumentError("The share ends behind the whole."));
    Tensor* share = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, tensorflow::TensorShape({count_}), &share));
    if (count_ == 0) return;
    const size_t element_bytes = share->TotalBytes() / count_;
    std::memcpy(
        share->data(),
        static_cast<const std::byte*>(whole.data()) + begin_ * element_bytes,
        share->TotalBytes());
  }

 private:
  int64_t begin_;
  int64_t count_;
};

REGISTER_KERNEL_BUILDER(Name("TfringReadShare").Device(DEVICE_CPU),
                        ReadShareOp);

// `y` is `whole` with the elements of the flat `share`, beginning at element
// `begin`.
REGISTER_OP("TfringWriteShare")
    .Input("whole: T")
    .Input("share: T")
    .Output("y: T")
    .Attr(TFRING_DTYPES)
    .Attr("begin: int >= 0")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

class WriteShareOp : public OpKernel {
 public:
  explicit WriteShareOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("begin", &begin_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor whole = context->input(0);
    const Tensor& share = context->input(1);
    OP_REQUIRES(context, begin_ + share.NumElements() <= whole.NumElements(),
                absl::InvalidArgumentError("The share ends behind the whole."));
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, whole.shape(), &y));
    if (whole.NumElements() == 0) return;
    auto* const to = static_cast<std::byte*>(y->data());
    std::memcpy(to, whole.data(), whole.TotalBytes());
    const size_t element_bytes = whole.TotalBytes() / whole.NumElements();
    std::memcpy(to + begin_ * element_bytes, share.data(), share.TotalBytes());
  }

 private:
  int64_t begin_;
};

REGISTER_KERNEL_BUILDER(Name("TfringWriteShare").Device(DEVICE_CPU),
                        WriteShareOp);

}  // namespace
}  // namespace tfring
