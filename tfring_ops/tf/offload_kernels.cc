// The kernels of offload_ops.cc, on the CPU and on GPUs.  Conversion only:
// between tensors and the types of offload/.
//
// On a GPU an op has run when its work has been enqueued and its inputs are
// released.  That is soon enough for TfringComputed: a fetch then allocates
// released memory, and its copy waits for the work that was enqueued; see Note
// [What copies wait for on a GPU] in cuda_copier.h.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tfring_ops/offload/copier.h"
#include "tfring_ops/offload/cuda_copier.h"
#include "tfring_ops/offload/plan.h"
#include "tfring_ops/offload/tier.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/gpu_stream.h"

namespace tfring {
namespace {

using tensorflow::Allocator;
using tensorflow::AllocatorAttributes;
using tensorflow::AsyncOpKernel;
using tensorflow::DEVICE_CPU;
using tensorflow::DEVICE_GPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;
using tensorflow::Variant;
using tensorflow::VariantTensorData;

// A feature map, which only its handle owns.
struct Stashed {
  // This is the first field, so that it is destroyed last, after the slot.
  std::shared_ptr<Execution> execution;
  TensorShape shape;
  std::unique_ptr<Tier::Slot> slot;  // null if the tensor stays, in `kept`
  Tensor kept;
};

// The content of this file's variants, which cannot leave the process.
template <typename T>
struct Reference {
  std::shared_ptr<T> to;

  std::string TypeName() const { return "tfring::Reference"; }
  std::string DebugString() const { return TypeName(); }
  void Encode(VariantTensorData*) const {}
  bool Decode(const VariantTensorData&) { return false; }
};

template <typename T>
Tensor Refer(std::shared_ptr<T> to) {
  Tensor tensor(tensorflow::DT_VARIANT, TensorShape({}));
  tensor.scalar<Variant>()() = Reference<T>{std::move(to)};
  return tensor;
}

// InvalidArgument if the input is another variant.
template <typename T>
absl::Status Dereference(OpKernelContext* context, int input,
                         std::shared_ptr<T>* to) {
  const auto* reference =
      context->input(input).scalar<Variant>()().get<Reference<T>>();
  if (reference == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(context->op_kernel().name(), ": input ", input,
                     " does not come from one of tfring's own operations."));
  }
  *to = reference->to;
  return absl::OkStatus();
}

// See Meter.  The allocator is a device's, and is never destroyed.
int64_t PeakBytes(Allocator* allocator) {
  const auto statistics = allocator->GetStats();
  // An allocator that counts has allocated something by now.
  if (!statistics.has_value() || statistics->peak_bytes_in_use == 0) return -1;
  return statistics->peak_bytes_in_use;
}

// Returns a slot for a tensor of this many bytes, in the plan's tier for the
// kernel's device.
absl::StatusOr<std::unique_ptr<Tier::Slot>> AllocateSlot(
    OpKernelContext* context, Plan& plan, int64_t bytes) {
  const std::optional<GpuStream> gpu = GpuStreamOf(context);
  if (!gpu.has_value()) return Tier::Pageable()->Allocate(bytes);
  return plan.TierOfGpu(gpu->device)->Allocate(bytes);
}

// Copies from or to a slot for the kernel's device.  The slot and the tensor
// must live until `done` is called, and nobody else may use the tensor's
// memory.
void CopyTensor(OpKernelContext* context, Copier::Direction direction,
                const Tensor& tensor, Tier::Slot* slot, Copier::Done done) {
  char* const data = const_cast<char*>(tensor.tensor_data().data());
  const auto bytes = static_cast<int64_t>(tensor.TotalBytes());
  if (const std::optional<GpuStream> gpu = GpuStreamOf(context)) {
    const absl::StatusOr<CudaCopier*> copier = CudaCopier::Find(gpu->device);
    if (!copier.ok()) {
      done(copier.status());
      return;
    }
    (*copier)->Submit(direction, gpu->stream, data, slot->memory(), bytes,
                      std::move(done));
    return;
  }
  const bool out = direction == Copier::Direction::kOut;
  Copier::Global().Submit(direction, out ? data : slot->memory(),
                          out ? slot->memory() : data, bytes, std::move(done));
}

class OffloadBeginOp : public OpKernel {
 public:
  explicit OffloadBeginOp(OpKernelConstruction* context) : OpKernel(context) {
    PlanOptions options;
    int64_t items = 0;
    OP_REQUIRES_OK(context, context->GetAttr("plan", &options.id));
    OP_REQUIRES_OK(context, context->GetAttr("items", &items));
    OP_REQUIRES_OK(context, context->GetAttr("min_bytes", &options.min_bytes));
    OP_REQUIRES_OK(context,
                   context->GetAttr("budget_bytes", &options.budget_bytes));
    OP_REQUIRES_OK(context, context->GetAttr("report", &options.report));
    OP_REQUIRES_OK(context, context->GetAttr("note", &options.note));
    options.items = static_cast<int>(items);
    plan_ = Plan::FindOrMake(options);
  }

  void Compute(OpKernelContext* context) override {
    Allocator* const allocator =
        context->device()->GetAllocator(AllocatorAttributes());
    context->set_output(
        0, Refer(plan_->Begin([allocator] { return PeakBytes(allocator); })));
  }

  bool IsExpensive() override { return false; }

 private:
  std::shared_ptr<Plan> plan_;
};

class StashOp : public AsyncOpKernel {
 public:
  explicit StashOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("item", &item_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& x = context->input(0);
    const int64_t bytes = x.TotalBytes();
    auto stashed = std::make_shared<Stashed>();
    OP_REQUIRES_OK_ASYNC(context, Dereference(context, 1, &stashed->execution),
                         done);
    stashed->shape = x.shape();
    if (!stashed->execution->Moves(item_, bytes)) {
      stashed->kept = x;
      context->set_output(0, Refer(std::move(stashed)));
      done();
      return;
    }
    auto slot = AllocateSlot(context, stashed->execution->plan(), bytes);
    OP_REQUIRES_OK_ASYNC(context, slot.status(), done);
    stashed->slot = *std::move(slot);
    // The executor keeps `x` until `done`.  The lambda keeps nothing, because
    // the step may end before the lambda is destroyed.
    Tier::Slot* const to = stashed->slot.get();
    CopyTensor(context, Copier::Direction::kOut, x, to,
               [context, stashed = std::move(stashed),
                done = std::move(done)](const absl::Status& status) mutable {
                 if (status.ok()) {
                   context->set_output(0, Refer(std::move(stashed)));
                 } else {
                   context->SetStatus(status);
                   stashed.reset();
                 }
                 done();  // From here on `x` has been released.
               });
  }

 private:
  int item_ = 0;
};

class FetchOp : public AsyncOpKernel {
 public:
  explicit FetchOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("item", &item_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<Stashed> stashed;
    OP_REQUIRES_OK_ASYNC(context, Dereference(context, 0, &stashed), done);
    stashed->execution->NeedsBack(item_);
    if (stashed->slot == nullptr) {
      context->set_output(0, stashed->kept);
      stashed.reset();
      done();
      return;
    }
    Tensor* y = nullptr;
    OP_REQUIRES_OK_ASYNC(context,
                         context->allocate_output(0, stashed->shape, &y), done);
    Tier::Slot* const from = stashed->slot.get();
    CopyTensor(context, Copier::Direction::kBack, *y, from,
               [context, stashed = std::move(stashed),
                done = std::move(done)](const absl::Status& status) mutable {
                 if (!status.ok()) context->SetStatus(status);
                 // The handle is an input, which the executor drops in `done`.
                 stashed.reset();
                 done();
               });
  }

 private:
  int item_ = 0;
};

// The memory of a tensor that no operation may use for its own result.
class ReadOnlyBuffer : public TensorBuffer {
 public:
  explicit ReadOnlyBuffer(const Tensor& of)
      : TensorBuffer(const_cast<char*>(of.tensor_data().data())), of_(of) {}

  size_t size() const override { return of_.TotalBytes(); }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(
      tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(size()));
  }
  bool OwnsMemory() const override { return false; }

 private:
  const Tensor of_;
};

// See Note [Sums in place] of offload_ops.cc.
class AfterStashOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    tensorflow::core::RefCountPtr<TensorBuffer> buffer(new ReadOnlyBuffer(x));
    context->set_output(0, Tensor(x.dtype(), x.shape(), std::move(buffer)));
  }

  // The op runs on the thread that computes its last input, and takes no thread
  // of its own.
  bool IsExpensive() override { return false; }
};

class ComputedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* token = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({}), &token));
    token->scalar<int64_t>()() = 0;
  }

  bool IsExpensive() override { return false; }
};

#define TFRING_ON_CPU(NAME, KERNEL) \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(DEVICE_CPU), KERNEL)
TFRING_ON_CPU("TfringOffloadBegin", OffloadBeginOp);
TFRING_ON_CPU("TfringStash", StashOp);
TFRING_ON_CPU("TfringAfterStash", AfterStashOp);
TFRING_ON_CPU("TfringFetch", FetchOp);
TFRING_ON_CPU("TfringComputed", ComputedOp);

// Feature maps may have types that no collective takes, such as complex
// numbers.
constexpr tensorflow::DataType kFeatureMaps[] = {
    TFRING_FOR_EACH_DTYPE_ON_GPU(TFRING_TYPE) tensorflow::DT_COMPLEX64,
    tensorflow::DT_COMPLEX128};
// TensorFlow keeps tensors of these types on the host.  Whatever type a step
// begins with, the meter shows the GPU's allocator.
constexpr tensorflow::DataType kOnHost[] = {tensorflow::DT_INT32,
                                            tensorflow::DT_STRING};

// All inputs and outputs except feature maps are in the host's memory.
#define TFRING_ON_GPU(NAME, TYPES) \
  Name(NAME).Device(DEVICE_GPU).TypeConstraint("T", TYPES)
REGISTER_KERNEL_BUILDER(
    TFRING_ON_GPU("TfringOffloadBegin", kFeatureMaps).HostMemory("execution"),
    OffloadBeginOp);
REGISTER_KERNEL_BUILDER(TFRING_ON_GPU("TfringOffloadBegin", kOnHost)
                            .HostMemory("x")
                            .HostMemory("execution"),
                        OffloadBeginOp);
REGISTER_KERNEL_BUILDER(TFRING_ON_GPU("TfringStash", kFeatureMaps)
                            .HostMemory("execution")
                            .HostMemory("handle"),
                        StashOp);
REGISTER_KERNEL_BUILDER(
    TFRING_ON_GPU("TfringAfterStash", kFeatureMaps).HostMemory("handle"),
    AfterStashOp);
REGISTER_KERNEL_BUILDER(TFRING_ON_GPU("TfringFetch", kFeatureMaps)
                            .HostMemory("handle")
                            .HostMemory("after")
                            .HostMemory("like"),
                        FetchOp);
REGISTER_KERNEL_BUILDER(
    TFRING_ON_GPU("TfringComputed", kFeatureMaps).HostMemory("token"),
    ComputedOp);

}  // namespace
}  // namespace tfring

// Makes TensorFlow count the CPU's allocations from now on; by default it
// counts only those of other devices.  Python calls it by ctypes.
extern "C" __attribute__((visibility("default"))) void
tfring_offload_count_allocations() {
  tensorflow::EnableCPUAllocatorStats();
}
