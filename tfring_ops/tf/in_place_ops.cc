// Allreduce, broadcast, and reducescatter and allgather in place: their outputs
// have the shapes of their inputs.  Their Done is also that of the
// reducescatter in row_ops.cc.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/runtime/handles.h"
#include "tfring_ops/runtime/stream_order.h"
#include "tfring_ops/tf/done_op.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/op_definitions.h"
#include "tfring_ops/tf/request.h"
#include "tfring_ops/tf/start_op.h"

namespace tfring {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// `wire_dtype` is T, or the type in which float32 and float64 are sent and
// reduced.
TFRING_START("TfringAllreduceStart")
    .Output("buf: N * T")
    .Output("handle: int64")
    .Attr("wire_dtype: type")
    .Attr("reduce_op: {" TFRING_REDUCTIONS "'adasum'}")
    .Attr("prescale_factor: string = '1.0'")
    .Attr("postscale_factor: string = '1.0'")
    .SetShapeFn(LikeInputsAndScalar);

// A start and its done in one operation, for eager calls, which wait at once.
// `request` is the text that ReadAllreduce takes: each attribute costs an eager
// call almost a microsecond.
REGISTER_OP("TfringAllreduce")
    .Input("x: T")
    .Output("y: T")
    .Attr(TFRING_DTYPES)
    .Attr("request: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

TFRING_START("TfringBroadcastStart")
    .Output("buf: N * T")
    .Output("handle: int64")
    .Attr("root_rank: int")
    .SetShapeFn(LikeInputsAndScalar);

// `buf` is whole, but only this rank's share is defined once it is done.
TFRING_START("TfringScatterInPlaceStart")
    .Output("buf: N * T")
    .Output("handle: int64")
    .Attr("reduce_op: {" TFRING_REDUCTIONS "}")
    .Attr("prescale_factor: string = '1.0'")
    .Attr("postscale_factor: string = '1.0'")
    .SetShapeFn(LikeInputsAndScalar);

// Only this rank's share of `x` is read.
TFRING_START("TfringGatherInPlaceStart")
    .Output("buf: N * T")
    .Output("handle: int64")
    .SetShapeFn(LikeInputsAndScalar);

// Gathers flat shares of this rank into outputs of `shapes`.  Share i has
// `counts[i]` elements, the first of which is element `begins[i]` of the whole
// tensor.
TFRING_START("TfringGatherSharesStart")
    .Output("buf: N * T")
    .Output("handle: int64")
    .Attr("shapes: list(shape)")
    .Attr("begins: list(int)")
    .Attr("counts: list(int)")
    .SetShapeFn([](InferenceContext* context) {
      std::vector<tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
      for (size_t i = 0; i < shapes.size(); ++i) {
        ShapeHandle shape;
        TF_RETURN_IF_ERROR(
            context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        context->set_output(static_cast<int>(i), shape);
      }
      context->set_output(static_cast<int>(shapes.size()), context->Scalar());
      return absl::OkStatus();
    });

// The done of an allreduce, a broadcast, a reducescatter, or an allgather in
// place.  `buf` may be read only here: the engine writes to it until this op
// has run.
REGISTER_OP("TfringDone")
    .Input("buf: N * T")
    .Input("handle: int64")
    .Input("last: int64")
    .Output("y: N * T")
    .Output("ended: int64")
    .Attr(TFRING_DTYPES)
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(LikeInputsAndScalar);

template <CollectiveKind kind>
class InPlaceStartOp : public StartOp {
 public:
  explicit InPlaceStartOp(OpKernelConstruction* context)
      : StartOp(context, kind) {}

  void Compute(OpKernelContext* context) override {
    auto tensors = std::make_shared<EntryTensors>();
    absl::StatusOr<TensorEntry> entry =
        NewInPlaceEntry(context, request(), *tensors);
    OP_REQUIRES_OK(context, entry.status());
    Start(context, /*index=*/count(), *std::move(entry), std::move(tensors));
  }
};

class GatherSharesStartOp : public StartOp {
 public:
  explicit GatherSharesStartOp(OpKernelConstruction* context)
      : StartOp(context, CollectiveKind::kGatherInPlace) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(context, context->GetAttr("counts", &counts_));
  }

  void Compute(OpKernelContext* context) override {
    auto tensors = std::make_shared<EntryTensors>();
    TensorEntry entry;
    entry.request = request();
    entry.inputs_are_shares = true;
    for (int i = 0; i < count(); ++i) {
      const Tensor& share = context->input(i);
      OP_REQUIRES_OK(context,
                     CheckShare(request(), i, share.NumElements(), counts_[i]));
      const auto sizes = shapes_[i].dim_sizes();
      entry.request.tensors[i].dims.assign(sizes.begin(), sizes.end());
      Tensor* whole = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &whole));
      tensors->in_use.push_back(share);
      tensors->in_use.push_back(*whole);
      entry.buffers.push_back({share.data(), whole->data()});
    }
    Start(context, /*index=*/count(), std::move(entry), std::move(tensors));
  }

 private:
  std::vector<TensorShape> shapes_;
  std::vector<int64_t> counts_;
};

class DoneOp : public CollectOp {
 public:
  using CollectOp::CollectOp;

 private:
  void SetOutputs(OpKernelContext* context, Outcome) override {
    for (int i = 0; i < count(); ++i) {
      context->set_output(i, context->input(i));
    }
    Tensor* ended = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(count(), TensorShape({}), &ended));
    ended->scalar<int64_t>()() = kNoHandle;
  }
};

// A start and its done.
class AllreduceOp : public CollectOp {
 public:
  explicit AllreduceOp(OpKernelConstruction* context) : CollectOp(context) {
    absl::StatusOr<CollectiveRequest> request = ReadAllreduce(context);
    OP_REQUIRES_OK(context, request.status());
    request_ = *std::move(request);
  }

 private:
  absl::StatusOr<Handle> Begin(OpKernelContext* context) override {
    auto tensors = std::make_shared<EntryTensors>();
    TFRING_ASSIGN_OR_RETURN(TensorEntry entry,
                            NewInPlaceEntry(context, request_, *tensors));
    TFRING_ASSIGN_OR_RETURN(std::shared_ptr<StreamOrder> order,
                            StreamOrderOf(context, entry));
    return Handles::Global().Start(std::move(entry), kNoHandle,
                                   std::move(tensors), std::move(order));
  }

  // Nothing to do: the outputs have aliased the inputs since the start.
  void SetOutputs(OpKernelContext* /*context*/, Outcome /*outcome*/) override {}

  CollectiveRequest request_;
};

REGISTER_KERNEL_BUILDER(Name("TfringAllreduce").Device(DEVICE_CPU),
                        AllreduceOp);
REGISTER_KERNEL_BUILDER(Name("TfringAllreduce")
                            .Device(tensorflow::DEVICE_GPU)
                            .TypeConstraint("T", kTypesOnGpu),
                        AllreduceOp);
TFRING_REGISTER_START("TfringAllreduceStart",
                      InPlaceStartOp<CollectiveKind::kAllreduce>);
TFRING_REGISTER_START("TfringBroadcastStart",
                      InPlaceStartOp<CollectiveKind::kBroadcast>);
TFRING_REGISTER_START("TfringScatterInPlaceStart",
                      InPlaceStartOp<CollectiveKind::kScatterInPlace>);
TFRING_REGISTER_START("TfringGatherInPlaceStart",
                      InPlaceStartOp<CollectiveKind::kGatherInPlace>);
TFRING_REGISTER_START("TfringGatherSharesStart", GatherSharesStartOp);
TFRING_REGISTER_DONE("TfringDone", "ended", DoneOp);

}  // namespace
}  // namespace tfring
