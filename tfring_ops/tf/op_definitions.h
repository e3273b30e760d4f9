// Attributes and shape functions that the definitions of the ops share.
//
// Ops are pairs: Start hands tensors to the engine and returns at once, Done
// waits for them.  All pairs are stateful.  Never make one stateless: grappler
// would fold it into a constant.  Without XLA, stateful ops of a tf.function
// run in the order of tracing; under XLA only data orders them, for which there
// are three handles:
// - `prev` of a Start: the handle of the chain's Start before it, so that every
//   rank starts in the same order.  The Start joins that chain.
// - `last` of a Done: the handle of the chain's newest Start; see Note [A
//   failure waits for its chain] in handles.cc.
// - `ended` of a Done: always 0, added to the `prev` of the next Start, which
//   thereby waits for the Done.
#ifndef TFRING_OPS_TF_OP_DEFINITIONS_H_
#define TFRING_OPS_TF_OP_DEFINITIONS_H_

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/tf/dtypes.h"

// Attributes from the tables of base/types.h and dtypes.h.  A list may end with
// a comma.
#define TFRING_DTYPE_NAME(DTYPE, TYPE, NAME) NAME ", "
#define TFRING_DTYPES \
  "T: {" TFRING_FOR_EACH_TENSORFLOW_DTYPE(TFRING_DTYPE_NAME) "}"
#define TFRING_REDUCTION_NAME(OP, NAME, IDENTITY) "'" NAME "', "
#define TFRING_REDUCTIONS TFRING_FOR_EACH_REDUCTION(TFRING_REDUCTION_NAME)

// The definition of a Start of N tensors.  Each op adds its outputs, its shape
// function and its own attributes.
#define TFRING_START(NAME)                \
  REGISTER_OP(NAME)                       \
      .Input("x: N * T")                  \
      .Input("prev: int64")               \
      .Attr(TFRING_DTYPES)                \
      .Attr("N: int >= 1")                \
      .Attr("request_name: string")       \
      .Attr("process_set_id: int = 0")    \
      .Attr("tensor_names: list(string)") \
      .SetIsStateful()

namespace tfring {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

inline int TensorCount(InferenceContext* context) {
  int count = 0;
  context->GetAttr("N", &count).IgnoreError();
  return count;
}

// The shape function of N outputs in the shapes of the inputs, and a scalar.
inline absl::Status LikeInputsAndScalar(InferenceContext* context) {
  const int count = TensorCount(context);
  for (int i = 0; i < count; ++i) context->set_output(i, context->input(i));
  context->set_output(count, context->Scalar());
  return absl::OkStatus();
}

// The shape function of N outputs in the shapes of the inputs, except that each
// has its own number of rows.
inline absl::Status LikeInputsButForTheRows(InferenceContext* context) {
  for (int i = 0; i < TensorCount(context); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(i), 1, &shape));
    if (context->RankKnown(shape)) {
      TF_RETURN_IF_ERROR(
          context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
    }
    context->set_output(i, shape);
  }
  return absl::OkStatus();
}

// The shape function of one output, a handle.
inline absl::Status ScalarAlone(InferenceContext* context) {
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

}  // namespace tfring

#endif  // TFRING_OPS_TF_OP_DEFINITIONS_H_
