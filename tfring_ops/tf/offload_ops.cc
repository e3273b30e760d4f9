// The ops that offload feature maps: TfringOffloadBegin, then TfringStash in
// the forward pass and TfringFetch in backpropagation.
//
// Note [Offloading is not stateful]
//
// Stateful ops of a tf.function run in the order of tracing, and all of these
// are traced after backpropagation: a fetch would wait for ops that wait for
// it.  So only data and control inputs order them.  TensorFlow cannot fold or
// merge them, because each has an input or output that is a variant or depends
// on one, and an `item` of its own.
//
// Note [Shapes go along]
//
// If a dimension is unknown, TensorFlow's optimizations reorder sums and
// products of tensors that have the same one.  To make them decide alike for
// fetched tensors, a fetch has the stashed tensor's shape as an input, which
// shows that the two shapes are equal.
//
// Note [Sums in place]
//
// TensorFlow adds up three tensors in the memory of the first one that nothing
// else holds, so the rounding depends on the references at that moment.
// Without offloading, backpropagation holds a feature map, and the forward pass
// never adds up in it.  With offloading, the reference ends once the copy has
// been made, which is a matter of time.  So the forward pass gets all feature
// maps from TfringAfterStash, in buffers that no op may write to.
//
// The variants are references: to one run of the step, and to a stashed tensor.
// If a run fails or is cancelled, the executor drops them like any tensor, and
// the last one frees its object.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfring {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status Scalar(InferenceContext* context) {
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

// Begins a run of the step.  `x` is any tensor that the step begins with, and
// is not read.  The attributes are those of PlanOptions.
REGISTER_OP("TfringOffloadBegin")
    .Input("x: T")
    .Output("execution: variant")
    .Attr("T: type")
    .Attr("plan: int")
    .Attr("items: int")
    .Attr("min_bytes: int")
    .Attr("budget_bytes: int = 0")
    .Attr("report: bool = false")
    .Attr("note: string = ''")
    .SetShapeFn(Scalar);

// Copies `x` to the tier.  `handle` is available when the copy is complete and
// `x` has been released.
REGISTER_OP("TfringStash")
    .Input("x: T")
    .Input("execution: variant")
    .Output("handle: variant")
    .Attr("T: type")
    .Attr("item: int")
    .SetShapeFn(Scalar);

// `y` is `x`, available once `handle` is.  So the forward pass runs ahead of
// the copies only as far as memory allows.  See Note [Sums in place].
REGISTER_OP("TfringAfterStash")
    .Input("x: T")
    .Input("handle: N * variant")
    .Output("y: T")
    .Attr("T: type")
    .Attr("N: int >= 0")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

// Copies the stashed tensor back, once the ops that gave `after` have run.  The
// shape is known, or there is one `like`: see Note [Shapes go along].
REGISTER_OP("TfringFetch")
    .Input("handle: variant")
    .Input("after: N * int64")
    .Input("like: M * int32")
    .Output("y: T")
    .Attr("T: type")
    .Attr("N: int >= 0")
    .Attr("M: int >= 0")
    .Attr("shape: shape")
    .Attr("item: int")
    .SetShapeFn([](InferenceContext* context) {
      int like = 0;
      TF_RETURN_IF_ERROR(context->GetAttr("M", &like));
      if (like == 0) {
        return tensorflow::shape_inference::ExplicitShape(context);
      }
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(
          context->MakeShapeFromShapeTensor(context->num_inputs() - 1, &shape));
      context->set_output(0, shape);
      return absl::OkStatus();
    });

// Outputs 0 once `x` has been computed.  The op is between `x` and the ops that
// wait for it, so that these do not keep `x`.
REGISTER_OP("TfringComputed")
    .Input("x: T")
    .Output("token: int64")
    .Attr("T: type")
    .SetShapeFn(Scalar);

}  // namespace
}  // namespace tfring
