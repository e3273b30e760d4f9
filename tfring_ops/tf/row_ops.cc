// Allgather, reducescatter and alltoall, whose outputs have other rows than
// their inputs.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/runtime/engines.h"
#include "tfring_ops/tf/done_op.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/op_definitions.h"
#include "tfring_ops/tf/start_op.h"

namespace tfring {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The shape function of one output, a handle; every input must have rows.
absl::Status HandleOfRows(InferenceContext* context) {
  ShapeHandle unused;
  for (int i = 0; i < TensorCount(context); ++i) {
    TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(i), 1, &unused));
  }
  return ScalarAlone(context);
}

// The shape function of N outputs, each with its own number of rows, and a
// scalar.
absl::Status RowsAndScalar(InferenceContext* context) {
  context->set_output(TensorCount(context), context->Scalar());
  return LikeInputsButForTheRows(context);
}

// The definition of a Done.  Each op adds its second output and its shape
// function.  The gradient flows to `x`; the engine allocates `y`, because its
// first dimension is known only then.  There is no `ended`, because these ops
// do not exist under XLA, where shapes are static.
#define TFRING_DONE_OF_ROWS(NAME)      \
  REGISTER_OP(NAME)                    \
      .Input("x: N * T")               \
      .Input("handle: int64")          \
      .Input("last: int64")            \
      .Output("y: N * T")              \
      .Attr(TFRING_DTYPES)             \
      .Attr("N: int >= 1")             \
      .Attr("request_name: string")    \
      .Attr("process_set_id: int = 0") \
      .SetIsStateful()

// ---- Allgather ----

TFRING_START("TfringAllgatherStart")
    .Output("handle: int64")
    .SetShapeFn(HandleOfRows);

// `contributors` is the number of ranks that took part: those that have not
// joined.
TFRING_DONE_OF_ROWS("TfringAllgatherDone")
    .Output("contributors: int64")
    .SetShapeFn(RowsAndScalar);

class AllgatherStartOp : public StartOp {
 public:
  explicit AllgatherStartOp(OpKernelConstruction* context)
      : StartOp(context, CollectiveKind::kAllgather) {}

  void Compute(OpKernelContext* context) override {
    TensorEntry entry = NewEntry(context, request());
    auto tensors = std::make_shared<EntryTensors>();
    for (int i = 0; i < count(); ++i) {
      const Tensor& input = context->input(i);
      OP_REQUIRES(context, input.dims() >= 1,
                  absl::InvalidArgumentError(absl::StrCat(
                      LabelOf(entry.request, i),
                      ": a scalar has no first dimension to gather along.")));
      tensors->in_use.push_back(input);
      entry.buffers.push_back({input.data(), nullptr});
    }
    tensors->gathered.resize(count() + 1);
    AllocateWhenKnown(context, entry, tensors);
    entry.on_contributors = [tensors](int contributors) {
      tensors->gathered.back() = Int64Scalar(contributors);
    };
    Start(context, /*index=*/0, std::move(entry), tensors);
  }
};

TFRING_REGISTER_START("TfringAllgatherStart", AllgatherStartOp);
TFRING_REGISTER_DONE("TfringAllgatherDone", "contributors", GatheredDoneOp);

// ---- Reducescatter ----

// `buf` has this rank's rows, whose number is known only at run time.
TFRING_START("TfringReducescatterStart")
    .Output("buf: N * T")
    .Output("handle: int64")
    .Attr("reduce_op: {" TFRING_REDUCTIONS "}")
    .Attr("prescale_factor: string = '1.0'")
    .Attr("postscale_factor: string = '1.0'")
    .SetShapeFn(RowsAndScalar);

class ReducescatterStartOp : public StartOp {
 public:
  explicit ReducescatterStartOp(OpKernelConstruction* context)
      : StartOp(context, CollectiveKind::kReduceScatter) {}

  void Compute(OpKernelContext* context) override {
    TensorEntry entry = NewEntry(context, request());
    const auto found = EngineOf(entry.request.process_set_id);
    OP_REQUIRES_OK(context, found.status());
    const Engine& engine = **found;
    auto tensors = std::make_shared<EntryTensors>();
    for (int i = 0; i < count(); ++i) {
      const Tensor& input = context->input(i);
      const TensorInfo& tensor = entry.request.tensors[i];
      OP_REQUIRES(context, input.dims() >= 1,
                  absl::InvalidArgumentError(absl::StrCat(
                      LabelOf(entry.request, i),
                      ": a scalar has no first dimension to scatter.")));
      TensorShape shape = input.shape();
      shape.set_dim(0, RowsOfRank(tensor, engine.rank(), engine.size()).count);
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, shape, &output));
      tensors->in_use.push_back(input);
      tensors->in_use.push_back(*output);
      entry.buffers.push_back({input.data(), output->data()});
    }
    Start(context, /*index=*/count(), std::move(entry), std::move(tensors));
  }
};

TFRING_REGISTER_START("TfringReducescatterStart", ReducescatterStartOp);

// ---- Alltoall ----

// `splits[r]` rows of every tensor go to rank r, and their sum is the number of
// rows.  Without `splits`, each rank gets equally many.
TFRING_START("TfringAlltoallStart")
    .Input("splits: int64")
    .Output("handle: int64")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(HandleOfRows(context));
      return context->WithRank(context->input(TensorCount(context) + 1), 1,
                               &unused);
    });

TFRING_DONE_OF_ROWS("TfringAlltoallDone")
    .Output("received_splits: int64")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(TensorCount(context),
                          context->Vector(context->UnknownDim()));
      return LikeInputsButForTheRows(context);
    });

class AlltoallStartOp : public StartOp {
 public:
  explicit AlltoallStartOp(OpKernelConstruction* context)
      : StartOp(context, CollectiveKind::kAlltoall) {}

  void Compute(OpKernelContext* context) override {
    TensorEntry entry = NewEntry(context, request());
    const auto found = EngineOf(entry.request.process_set_id);
    OP_REQUIRES_OK(context, found.status());
    const Engine& engine = **found;
    const auto given = context->input(count() + 1).vec<int64_t>();
    entry.request.splits.assign(given.data(), given.data() + given.size());
    if (entry.request.splits.empty()) {
      const Tensor& first = context->input(0);
      const int64_t rows = first.dims() == 0 ? 0 : first.dim_size(0);
      OP_REQUIRES(context, rows % engine.size() == 0,
                  absl::InvalidArgumentError(
                      absl::StrCat(LabelOf(entry.request, 0), ": ", rows,
                                   " rows cannot be split evenly between ",
                                   engine.size(), " ranks. Pass splits=.")));
      entry.request.splits.assign(engine.size(), rows / engine.size());
    }
    auto tensors = std::make_shared<EntryTensors>();
    for (int i = 0; i < count(); ++i) {
      const Tensor& input = context->input(i);
      OP_REQUIRES_OK(context, CheckSplits(entry.request, i, engine.size()));
      tensors->in_use.push_back(input);
      entry.buffers.push_back({input.data(), nullptr});
    }
    tensors->gathered.resize(count() + 1);
    AllocateWhenKnown(context, entry, tensors);
    entry.on_received_splits = [tensors](const std::vector<int64_t>& splits) {
      Tensor received(tensorflow::DT_INT64,
                      TensorShape({static_cast<int64_t>(splits.size())}));
      std::copy(splits.begin(), splits.end(), received.vec<int64_t>().data());
      tensors->gathered.back() = std::move(received);
    };
    Start(context, /*index=*/0, std::move(entry), tensors);
  }

 private:
  static absl::Status CheckSplits(const CollectiveRequest& request, int index,
                                  int size) {
    const TensorInfo& tensor = request.tensors[index];
    const std::string what = absl::StrCat(LabelOf(request, index), ": ");
    if (tensor.dims.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, "a scalar has no first dimension to split."));
    }
    const int64_t rows = tensor.dims[0];
    const std::vector<int64_t>& splits = request.splits;
    // Subtract one by one, because a sum might wrap round.
    int64_t left = rows;
    for (const int64_t split : splits) {
      if (split < 0 || split > left) {
        left = -1;
        break;
      }
      left -= split;
    }
    if (static_cast<int>(splits.size()) == size && left == 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        what, "splits must be ", size, " numbers of rows, one for each rank, ",
        "none negative and ", rows, " in all, as the tensor has; got [",
        absl::StrJoin(splits, ", "), "]."));
  }
};

REGISTER_KERNEL_BUILDER(Name("TfringAlltoallStart").Device(DEVICE_CPU),
                        AlltoallStartOp);
REGISTER_KERNEL_BUILDER(TFRING_START_ON_GPU("TfringAlltoallStart")
                            .HostMemory("splits")
                            .TypeConstraint("T", kTypesOnGpu),
                        AlltoallStartOp);
TFRING_REGISTER_DONE("TfringAlltoallDone", "received_splits", GatheredDoneOp);

}  // namespace
}  // namespace tfring
