// Allgather, reducescatter and alltoall: their outputs have other rows than
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

// ---- Allgather ----

REGISTER_OP("TfringAllgatherStart")
    .Input("x: N * T")
    .Input("prev: int64")
    .Output("handle: int64")
    .Attr(TFRING_DTYPES)
    .Attr("N: int >= 1")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle unused;
      for (int i = 0; i < TensorCount(context); ++i) {
        TF_RETURN_IF_ERROR(
            context->WithRankAtLeast(context->input(i), 1, &unused));
      }
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });

// `x` is what the gradient flows to; the memory of `y` is made by the engine,
// since its first dimension is known only then.  `contributors` is how many
// ranks took part: all that have not joined.  No `ended`: there is no allgather
// under XLA, where shapes are static.
REGISTER_OP("TfringAllgatherDone")
    .Input("x: N * T")
    .Input("handle: int64")
    .Input("last: int64")
    .Output("y: N * T")
    .Output("contributors: int64")
    .Attr(TFRING_DTYPES)
    .Attr("N: int >= 1")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      TF_RETURN_IF_ERROR(LikeInputsButForTheRows(context));
      context->set_output(TensorCount(context), context->Scalar());
      return absl::OkStatus();
    });

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

REGISTER_KERNEL_BUILDER(Name("TfringAllgatherStart").Device(DEVICE_CPU),
                        AllgatherStartOp);
REGISTER_KERNEL_BUILDER(Name("TfringAllgatherDone").Device(DEVICE_CPU),
                        GatheredDoneOp);

#define TFRING_ALLGATHER_ON_GPU(DTYPE, TYPE, TEXT)                           \
  REGISTER_KERNEL_BUILDER(                                                   \
      TFRING_START_ON_GPU("TfringAllgatherStart").TypeConstraint<TYPE>("T"), \
      AllgatherStartOp);                                                     \
  REGISTER_KERNEL_BUILDER(TFRING_DONE_ON_GPU("TfringAllgatherDone")          \
                              .HostMemory("contributors")                    \
                              .TypeConstraint<TYPE>("T"),                    \
                          GatheredDoneOp);
TFRING_FOR_EACH_DTYPE_ON_GPU(TFRING_ALLGATHER_ON_GPU)

// ---- Reducescatter ----

// `buf` has this rank's rows, how many of them is known at run time.
REGISTER_OP("TfringReducescatterStart")
    .Input("x: N * T")
    .Input("prev: int64")
    .Output("buf: N * T")
    .Output("handle: int64")
    .Attr(TFRING_DTYPES)
    .Attr("N: int >= 1")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .Attr("tensor_names: list(string)")
    .Attr("reduce_op: {" TFRING_REDUCTIONS "}")
    .Attr("prescale_factor: string = '1.0'")
    .Attr("postscale_factor: string = '1.0'")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      TF_RETURN_IF_ERROR(LikeInputsButForTheRows(context));
      context->set_output(TensorCount(context), context->Scalar());
      return absl::OkStatus();
    });

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

REGISTER_KERNEL_BUILDER(Name("TfringReducescatterStart").Device(DEVICE_CPU),
                        ReducescatterStartOp);

#define TFRING_REDUCESCATTER_ON_GPU(DTYPE, TYPE, TEXT)                    \
  REGISTER_KERNEL_BUILDER(TFRING_START_ON_GPU("TfringReducescatterStart") \
                              .TypeConstraint<TYPE>("T"),                 \
                          ReducescatterStartOp);
TFRING_FOR_EACH_DTYPE_ON_GPU(TFRING_REDUCESCATTER_ON_GPU)

// ---- Alltoall ----

// Every tensor has as many rows as `splits` have in all; each rank gets so many
// of them.  No `splits` are equal ones.
REGISTER_OP("TfringAlltoallStart")
    .Input("x: N * T")
    .Input("prev: int64")
    .Input("splits: int64")
    .Output("handle: int64")
    .Attr(TFRING_DTYPES)
    .Attr("N: int >= 1")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .Attr("tensor_names: list(string)")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      const int count = TensorCount(context);
      ShapeHandle unused;
      for (int i = 0; i < count; ++i) {
        TF_RETURN_IF_ERROR(
            context->WithRankAtLeast(context->input(i), 1, &unused));
      }
      TF_RETURN_IF_ERROR(
          context->WithRank(context->input(count + 1), 1, &unused));
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });

// See TfringAllgatherDone.
REGISTER_OP("TfringAlltoallDone")
    .Input("x: N * T")
    .Input("handle: int64")
    .Input("last: int64")
    .Output("y: N * T")
    .Output("received_splits: int64")
    .Attr(TFRING_DTYPES)
    .Attr("N: int >= 1")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      TF_RETURN_IF_ERROR(LikeInputsButForTheRows(context));
      context->set_output(TensorCount(context),
                          context->Vector(context->UnknownDim()));
      return absl::OkStatus();
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
    // One by one, as a sum might wrap round.
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
REGISTER_KERNEL_BUILDER(Name("TfringAlltoallDone").Device(DEVICE_CPU),
                        GatheredDoneOp);

#define TFRING_ALLTOALL_ON_GPU(DTYPE, TYPE, TEXT)                    \
  REGISTER_KERNEL_BUILDER(TFRING_START_ON_GPU("TfringAlltoallStart") \
                              .HostMemory("splits")                  \
                              .TypeConstraint<TYPE>("T"),            \
                          AlltoallStartOp);                          \
  REGISTER_KERNEL_BUILDER(TFRING_DONE_ON_GPU("TfringAlltoallDone")   \
                              .HostMemory("received_splits")         \
                              .TypeConstraint<TYPE>("T"),            \
                          GatheredDoneOp);
TFRING_FOR_EACH_DTYPE_ON_GPU(TFRING_ALLTOALL_ON_GPU)

}  // namespace
}  // namespace tfring
