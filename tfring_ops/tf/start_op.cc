#include "tfring_ops/tf/start_op.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocator.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/tf/gpu_stream.h"
#include "tfring_ops/tf/request.h"

namespace tfring {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

std::string LabelOf(const CollectiveRequest& request, int index) {
  const std::string& name = request.tensors[index].name;
  return name.empty() ? Name(request.kind)
                      : absl::StrCat(Name(request.kind), " of '", name, "'");
}

absl::Status CheckShare(const CollectiveRequest& request, int index,
                        int64_t count, int64_t expected) {
  if (count == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "This rank's share of '", request.tensors[index].name, "' has ", count,
      " elements, and the function was traced for ", expected,
      ": the ranks have changed since. Make the tf.function again."));
}

StartOp::StartOp(OpKernelConstruction* context, CollectiveKind kind)
    : OpKernel(context) {
  absl::StatusOr<CollectiveRequest> request = ReadRequest(context, kind);
  OP_REQUIRES_OK(context, request.status());
  request_ = *std::move(request);
}

TensorEntry NewEntry(OpKernelContext* context,
                     const CollectiveRequest& request) {
  TensorEntry entry;
  entry.request = request;
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const auto sizes = context->input(static_cast<int>(i)).shape().dim_sizes();
    entry.request.tensors[i].dims.assign(sizes.begin(), sizes.end());
  }
  return entry;
}

absl::StatusOr<TensorEntry> NewInPlaceEntry(OpKernelContext* context,
                                            const CollectiveRequest& request,
                                            EntryTensors& tensors) {
  TensorEntry entry = NewEntry(context, request);
  const auto count = static_cast<int>(request.tensors.size());
  for (int i = 0; i < count; ++i) {
    // This function may not hold a Tensor of the input while it offers the
    // input for forwarding.
    const void* const input = context->input(i).data();
    const TensorShape shape = context->input(i).shape();
    Tensor* output = nullptr;
    int forwarded_input = -1;
    TFRING_RETURN_IF_ERROR(context->forward_input_or_allocate_output(
        {i}, i, shape, &output, &forwarded_input));
    if (forwarded_input < 0) tensors.in_use.push_back(context->input(i));
    tensors.in_use.push_back(*output);
    entry.buffers.push_back({input, output->data()});
  }
  return entry;
}

absl::StatusOr<std::shared_ptr<StreamOrder>> StreamOrderOf(
    OpKernelContext* context, TensorEntry& entry) {
  const std::optional<GpuStream> gpu = GpuStreamOf(context);
  if (!gpu.has_value() || entry.request.tensors.empty()) return nullptr;
  return StreamOrder::Of(gpu->stream, gpu->device, entry);
}

void StartOp::Start(OpKernelContext* context, int index, TensorEntry entry,
                    std::shared_ptr<EntryTensors> tensors) const {
  Tensor* output = nullptr;
  OP_REQUIRES_OK(context,
                 context->allocate_output(index, TensorShape({}), &output));
  const Handle previous = context->input(count()).scalar<int64_t>()();
  absl::StatusOr<std::shared_ptr<StreamOrder>> order =
      StreamOrderOf(context, entry);
  OP_REQUIRES_OK(context, order.status());
  const absl::StatusOr<Handle> handle = Handles::Global().Start(
      std::move(entry), previous, std::move(tensors), *std::move(order));
  OP_REQUIRES_OK(context, handle.status());
  output->scalar<int64_t>()() = *handle;
}

void AllocateWhenKnown(OpKernelContext* context, TensorEntry& entry,
                       const std::shared_ptr<EntryTensors>& tensors) {
  // The device and its allocator outlive every step.
  entry.allocate_output =
      [tensors, kind = entry.request.kind, dtype = context->input_dtype(0),
       allocator = context->get_allocator(tensorflow::AllocatorAttributes())](
          int index,
          const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
    Tensor output(allocator, dtype, TensorShape(dims));
    if (!output.IsInitialized()) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Name(kind), ": no memory for an output of shape ",
                       output.shape().DebugString(), "."));
    }
    tensors->gathered[index] = output;
    return output.data();
  };
}

Tensor Int64Scalar(int64_t value) {
  Tensor tensor(tensorflow::DT_INT64, TensorShape({}));
  tensor.scalar<int64_t>()() = value;
  return tensor;
}

}  // namespace tfring
