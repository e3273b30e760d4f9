// The bases of the Done ops' kernels, on the CPU and on GPUs.  Conversion only:
// from an Outcome to tensors.
#ifndef TFRING_OPS_TF_DONE_OP_H_
#define TFRING_OPS_TF_DONE_OP_H_

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tfring_ops/runtime/handles.h"
#include "tfring_ops/tf/dtypes.h"
#include "tfring_ops/tf/entry_tensors.h"
#include "tfring_ops/tf/gpu_stream.h"

namespace tfring {

// The handle is input number N (0 without the attribute N), unless a subclass
// overrides Begin.
class CollectOp : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectOp(tensorflow::OpKernelConstruction* context)
      : tensorflow::AsyncOpKernel(context) {
    if (context->HasAttr("N")) {
      OP_REQUIRES_OK(context, context->GetAttr("N", &count_));
    }
  }

  void ComputeAsync(tensorflow::OpKernelContext* context,
                    DoneCallback done) override {
    const absl::StatusOr<Handle> handle = Begin(context);
    OP_REQUIRES_OK_ASYNC(context, handle.status(), done);
    auto finish = [this, context, done = std::move(done)](Outcome outcome) {
      if (outcome.status.ok()) {
        SetOutputs(context, std::move(outcome));
      } else {
        context->SetStatus(outcome.status);
      }
      done();
    };
    const std::optional<GpuStream> gpu = GpuStreamOf(context);
    std::optional<Outcome> outcome = Handles::Global().Take(
        *handle, gpu.has_value() ? gpu->stream : nullptr, finish);
    if (outcome.has_value()) finish(*std::move(outcome));
  }

 protected:
  int count() const { return count_; }

 private:
  // Returns the handle of the collective to wait for.
  virtual absl::StatusOr<Handle> Begin(tensorflow::OpKernelContext* context) {
    return context->input(count_).scalar<int64_t>()();
  }
  virtual void SetOutputs(tensorflow::OpKernelContext* context,
                          Outcome outcome) = 0;

  int count_ = 0;
};

// Collects the outputs that the Start has allocated, or has had the engine
// allocate.
class GatheredDoneOp : public CollectOp {
 public:
  using CollectOp::CollectOp;

 private:
  void SetOutputs(tensorflow::OpKernelContext* context,
                  Outcome outcome) override {
    auto& tensors = static_cast<EntryTensors&>(*outcome.memory);
    for (int i = 0; i < context->num_outputs(); ++i) {
      context->set_output(i, std::move(tensors.gathered[i]));
    }
  }
};

}  // namespace tfring

// Builds the kernel of a Done on GPUs, without the type.
#define TFRING_DONE_ON_GPU(NAME)      \
  Name(NAME)                          \
      .Device(tensorflow::DEVICE_GPU) \
      .HostMemory("handle")           \
      .HostMemory("last")

// Registers the kernel of a Done of tensors on the CPU and on GPUs, where the
// output HOST is in the host's memory.
#define TFRING_REGISTER_DONE(NAME, HOST, KERNEL)                              \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_CPU), KERNEL); \
  REGISTER_KERNEL_BUILDER(                                                    \
      TFRING_DONE_ON_GPU(NAME).HostMemory(HOST).TypeConstraint(               \
          "T", tfring::kTypesOnGpu),                                          \
      KERNEL)

#endif  // TFRING_OPS_TF_DONE_OP_H_
