// The ops under jit_compile: each becomes a custom call to a handler of ffi/.
//
// Note [Custom calls that stay in place]
//
// - The typed FFI is the one custom call API that XLA:CPU still supports; with
//   the status-returning one of old, XLA of TensorFlow 2.21 segfaults.
// - Without `has_side_effect` XLA merges and removes calls.
// - Output i aliases operand i, so the reduction is in place with no copy.  XLA
//   copies arguments and values that something else reads.  Why a tensor stays
//   where it is between Start and Done is in Note [Tensors stay where they are]
//   in xla/pins.h.
// - Layouts are fixed to row-major, so that the order of the elements does not
//   depend on the rest of a rank's program.  For a pinned tensor Pin fixes the
//   layout: XLA would copy the operands of a call that asks for the layout of a
//   buffer, and it refuses a program that copies a buffer.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/ffi/custom_calls.h"
#include "tfring_ops/tf/request.h"
#include "tfring_ops/tf/start_op.h"
#include "tfring_ops/xla/pins.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tfring {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::XlaOpKernel;
using tensorflow::XlaOpKernelContext;

// Returns an attribute in MLIR's syntax.
std::string Attribute(absl::string_view name, absl::string_view value) {
  std::string attribute = absl::StrCat(name, " = \"");
  for (const char c : value) {
    if (absl::ascii_isalnum(c)) {
      attribute += c;
    } else {
      absl::StrAppendFormat(&attribute, "\\%02X", static_cast<uint8_t>(c));
    }
  }
  return attribute + "\"";
}

// Calls `target` with `operands`.  The call's outputs are the first `count`
// operands, in place, and values of the shapes `more`.
xla::XlaOp InPlaceCall(XlaOpKernelContext* context, const char* target,
                       const std::vector<xla::XlaOp>& operands, int count,
                       absl::Span<const xla::Shape> more,
                       const std::string& attributes) {
  bool any_pinned = false;
  std::vector<xla::Shape> operand_shapes;
  for (const xla::XlaOp operand : operands) {
    absl::StatusOr<xla::Shape> shape = context->builder()->GetShape(operand);
    if (!shape.ok()) return context->builder()->ReportError(shape.status());
    any_pinned |= IsPinned(*shape);
    xla::LayoutUtil::SetToDefaultLayout(&*shape);
    operand_shapes.push_back(*std::move(shape));
  }
  std::vector<xla::Shape> output_shapes(operand_shapes.begin(),
                                        operand_shapes.begin() + count);
  output_shapes.insert(output_shapes.end(), more.begin(), more.end());
  std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>
      aliasing(count);
  for (int i = 0; i < count; ++i) {
    aliasing[i].first.push_back(i);
    aliasing[i].second.first = i;
  }

  const xla::Shape output = xla::ShapeUtil::MakeTupleShape(output_shapes);
  constexpr auto kSchedule = xla::CustomCallSchedule::SCHEDULE_NONE;
  constexpr auto kVersion = xla::CustomCallApiVersion::API_VERSION_TYPED_FFI;
  if (any_pinned) {
    return xla::CustomCall(context->builder(), target, operands, output,
                           attributes, /*has_side_effect=*/true, aliasing,
                           /*literal=*/nullptr, kSchedule, kVersion);
  }
  return xla::CustomCallWithLayout(context->builder(), target, operands, output,
                                   operand_shapes, attributes,
                                   /*has_side_effect=*/true, aliasing,
                                   /*literal=*/nullptr, kSchedule, kVersion);
}

std::vector<xla::XlaOp> Inputs(XlaOpKernelContext* context) {
  std::vector<xla::XlaOp> inputs;
  for (int i = 0; i < context->num_inputs(); ++i) {
    inputs.push_back(context->Input(i));
  }
  return inputs;
}

// Makes the elements of `tuple` the op's outputs.
void SetOutputs(XlaOpKernelContext* context, xla::XlaOp tuple) {
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->SetOutput(i, xla::GetTupleElement(tuple, i));
  }
}

xla::Shape DenseShape(xla::PrimitiveType type,
                      absl::Span<const int64_t> dimensions) {
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(type, dimensions);
}

xla::Shape HandleShape() { return DenseShape(xla::S64, /*dimensions=*/{}); }

// Returns the attributes of a call that reads or writes a share.
std::string Begin(int64_t begin) {
  return absl::StrCat("{begin = ", begin, " : i64}");
}

xla::XlaOp Flat(xla::XlaOp tensor, const xla::Shape& shape) {
  return xla::Reshape(tensor, {xla::ShapeUtil::ElementsIn(shape)});
}

enum class Platform { kHost, kCuda };

template <CollectiveKind kind, Platform platform>
class StartXlaOp : public XlaOpKernel {
 public:
  explicit StartXlaOp(OpKernelConstruction* context) : XlaOpKernel(context) {
    absl::StatusOr<CollectiveRequest> request = ReadRequest(context, kind);
    OP_REQUIRES_OK(context, request.status());
    request_ = *std::move(request);
  }

  void Compile(XlaOpKernelContext* context) override {
    Start(context, Inputs(context));
  }

 protected:
  const CollectiveRequest& request() const { return request_; }

  // Starts the collective of the first operands, the tensors, in place.
  void Start(XlaOpKernelContext* context, std::vector<xla::XlaOp> operands) {
    const int count = static_cast<int>(request_.tensors.size());
    std::string attributes = Attribute("request", Encode(request_));
    if (platform == Platform::kCuda) {
      // See Note [Handles on a GPU] in ffi/cuda_handlers.cc.
      int64_t previous = 0;
      const bool first =
          context->ConstantInputAsIntScalar(count, &previous).ok();
      absl::StrAppend(&attributes, ", ",
                      Attribute("place", first ? kFirstOfChain : ""));
    }
    for (int i = 0; i < count; ++i) operands[i] = Pin(operands[i]);
    SetOutputs(context, InPlaceCall(context, kStartCall, operands, count,
                                    {HandleShape()},
                                    absl::StrCat("{", attributes, "}")));
  }

 private:
  CollectiveRequest request_;
};

// Note [Shares under XLA]
//
// XLA:CPU computes everything as soon as it can, and so would allocate the
// whole tensors of all gathers first, and keep them.  So a custom call puts a
// share into a whole tensor, and also takes the handle of the previous start as
// an operand.
template <Platform platform>
class GatherSharesXlaOp
    : public StartXlaOp<CollectiveKind::kGatherInPlace, platform> {
 public:
  explicit GatherSharesXlaOp(OpKernelConstruction* context)
      : StartXlaOp<CollectiveKind::kGatherInPlace, platform>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(context, context->GetAttr("begins", &begins_));
    OP_REQUIRES_OK(context, context->GetAttr("counts", &counts_));
  }

  void Compile(XlaOpKernelContext* context) override {
    std::vector<xla::XlaOp> operands = Inputs(context);
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const absl::StatusOr<xla::Shape> share =
          context->builder()->GetShape(operands[i]);
      OP_REQUIRES_OK(context, share.status());
      OP_REQUIRES_OK(
          context, CheckShare(this->request(), static_cast<int>(i),
                              xla::ShapeUtil::ElementsIn(*share), counts_[i]));
      const xla::Shape whole =
          DenseShape(share->element_type(), shapes_[i].dim_sizes());
      operands[i] = Place(context, operands[i], *share, operands.back(), whole,
                          begins_[i]);
    }
    this->Start(context, std::move(operands));
  }

 private:
  static xla::XlaOp Place(XlaOpKernelContext* context, xla::XlaOp share,
                          const xla::Shape& share_shape, xla::XlaOp previous,
                          const xla::Shape& whole, int64_t begin) {
    if (platform == Platform::kHost) {
      return xla::GetTupleElement(
          InPlaceCall(context, kPlaceCall, {share, previous}, /*count=*/0,
                      {whole}, Begin(begin)),
          0);
    }
    const int64_t behind = xla::ShapeUtil::ElementsIn(whole) - begin -
                           xla::ShapeUtil::ElementsIn(share_shape);
    const xla::XlaOp flat = xla::PadInDim(
        share, xla::Zero(context->builder(), whole.element_type()),
        /*dimno=*/0, begin, behind);
    return xla::Reshape(flat, whole.dimensions());
  }

  std::vector<tensorflow::TensorShape> shapes_;
  std::vector<int64_t> begins_;
  std::vector<int64_t> counts_;
};

class DoneXlaOp : public XlaOpKernel {
 public:
  explicit DoneXlaOp(OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
  }

  void Compile(XlaOpKernelContext* context) override {
    const xla::XlaOp done =
        InPlaceCall(context, kDoneCall, Inputs(context), count_,
                    {HandleShape()}, /*attributes=*/"");
    for (int i = 0; i < context->num_outputs(); ++i) {
      context->SetOutput(i, Unpin(xla::GetTupleElement(done, i)));
    }
  }

 private:
  int count_;
};

// Note [What waits for a start under XLA]
//
// XLA schedules by data, and then by memory.  A weight's gradient frees no
// memory, so the weights' gradients of all layers may come last, and all starts
// with them.  A program on a GPU has one order, so there the tensor passes a
// barrier together with the handle of the start.  XLA drops the barrier once it
// has made the schedule, so there is no copy.  On the CPU the barrier would
// copy, and ready operations run at the same time, so nothing waits there.
template <Platform platform>
class AfterStartXlaOp : public XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    xla::XlaOp tensor = context->Input(0);
    if (platform == Platform::kCuda) {
      const xla::XlaOp both = xla::OptimizationBarrier(
          xla::Tuple(context->builder(), {tensor, context->Input(1)}));
      tensor = xla::GetTupleElement(both, 0);
    }
    context->SetOutput(0, tensor);
  }
};

// The ops that wait for a tensor depend on its first element.  On the host, a
// custom call keeps XLA from computing the token too early.
template <Platform platform>
class ComputedXlaOp : public XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* context) override {
    const absl::StatusOr<xla::Shape> shape =
        context->builder()->GetShape(context->Input(0));
    OP_REQUIRES_OK(context, shape.status());
    const xla::XlaOp first =
        xla::SliceInDim(Flat(context->Input(0), *shape), /*start_index=*/0,
                        /*limit_index=*/1, /*stride=*/1, /*dimno=*/0);
    if (platform == Platform::kHost) {
      return SetOutputs(context, InPlaceCall(context, kComputedCall, {first},
                                             /*count=*/0, {HandleShape()},
                                             /*attributes=*/""));
    }
    const xla::XlaOp both = xla::OptimizationBarrier(
        xla::Tuple(context->builder(),
                   {first, xla::ConstantR0<int64_t>(context->builder(), 0)}));
    context->SetOutput(0, xla::GetTupleElement(both, 1));
  }
};

// Note [Shares in place]
//
// An allgather in place writes into the variable's own memory.  XLA:CPU would
// make a dynamic-update-slice of the variable a loop over all of it, into other
// memory because the share is computed from the variable, and then copy the
// whole result back.  A custom call that has the variable as operand and, in
// place, as result needs neither.  It must have the variable in its own shape,
// because XLA copies a tensor that is reshaped for a call.  Reading a share is
// a custom call, too: XLA:CPU would make a slice of a reshaped matrix a part of
// each loop that uses it, and the loop would divide by the length of a row for
// every element, unless the slice consists of whole rows.
template <Platform platform>
class ReadShareXlaOp : public XlaOpKernel {
 public:
  explicit ReadShareXlaOp(OpKernelConstruction* context)
      : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("begin", &begin_));
    OP_REQUIRES_OK(context, context->GetAttr("count", &count_));
  }

  void Compile(XlaOpKernelContext* context) override {
    const absl::StatusOr<xla::Shape> whole =
        context->builder()->GetShape(context->Input(0));
    OP_REQUIRES_OK(context, whole.status());
    if (platform == Platform::kHost) {
      return SetOutputs(
          context, InPlaceCall(context, kReadCall, Inputs(context), /*count=*/0,
                               {DenseShape(whole->element_type(), {count_})},
                               Begin(begin_)));
    }
    context->SetOutput(0, xla::SliceInDim(Flat(context->Input(0), *whole),
                                          begin_, begin_ + count_,
                                          /*stride=*/1, /*dimno=*/0));
  }

 private:
  int64_t begin_;
  int64_t count_;
};

template <Platform platform>
class WriteShareXlaOp : public XlaOpKernel {
 public:
  explicit WriteShareXlaOp(OpKernelConstruction* context)
      : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("begin", &begin_));
  }

  void Compile(XlaOpKernelContext* context) override {
    if (platform == Platform::kHost) {
      return SetOutputs(context,
                        InPlaceCall(context, kWriteCall, Inputs(context),
                                    /*count=*/1, /*more=*/{}, Begin(begin_)));
    }
    const absl::StatusOr<xla::Shape> shape =
        context->builder()->GetShape(context->Input(0));
    OP_REQUIRES_OK(context, shape.status());
    const xla::XlaOp begin =
        xla::ConstantR0<int64_t>(context->builder(), begin_);
    context->SetOutput(
        0, xla::Reshape(xla::DynamicUpdateSlice(Flat(context->Input(0), *shape),
                                                context->Input(1), {begin}),
                        shape->dimensions()));
  }

 private:
  int64_t begin_;
};

// REGISTER_XLA_OP would be too early: TensorFlow reads that registry once, when
// it makes its devices, and the op library may be opened later.
#define TFRING_REGISTER_XLA(DEVICE, PLATFORM)                                \
  REGISTER_KERNEL_BUILDER(Name("TfringAllreduceStart").Device(DEVICE),       \
                          StartXlaOp<CollectiveKind::kAllreduce, PLATFORM>); \
  REGISTER_KERNEL_BUILDER(Name("TfringBroadcastStart").Device(DEVICE),       \
                          StartXlaOp<CollectiveKind::kBroadcast, PLATFORM>); \
  REGISTER_KERNEL_BUILDER(                                                   \
      Name("TfringScatterInPlaceStart").Device(DEVICE),                      \
      StartXlaOp<CollectiveKind::kScatterInPlace, PLATFORM>);                \
  REGISTER_KERNEL_BUILDER(                                                   \
      Name("TfringGatherInPlaceStart").Device(DEVICE),                       \
      StartXlaOp<CollectiveKind::kGatherInPlace, PLATFORM>);                 \
  REGISTER_KERNEL_BUILDER(Name("TfringGatherSharesStart").Device(DEVICE),    \
                          GatherSharesXlaOp<PLATFORM>);                      \
  REGISTER_KERNEL_BUILDER(Name("TfringDone").Device(DEVICE), DoneXlaOp);     \
  REGISTER_KERNEL_BUILDER(Name("TfringComputed").Device(DEVICE),             \
                          ComputedXlaOp<PLATFORM>);                          \
  REGISTER_KERNEL_BUILDER(Name("TfringAfterStart").Device(DEVICE),           \
                          AfterStartXlaOp<PLATFORM>);                        \
  REGISTER_KERNEL_BUILDER(Name("TfringReadShare").Device(DEVICE),            \
                          ReadShareXlaOp<PLATFORM>);                         \
  REGISTER_KERNEL_BUILDER(Name("TfringWriteShare").Device(DEVICE),           \
                          WriteShareXlaOp<PLATFORM>)

TFRING_REGISTER_XLA(tensorflow::DEVICE_CPU_XLA_JIT, Platform::kHost);
TFRING_REGISTER_XLA(tensorflow::DEVICE_GPU_XLA_JIT, Platform::kCuda);

}  // namespace
}  // namespace tfring
