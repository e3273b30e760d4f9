// Barrier and join, which have no tensors.
#include <memory>
#include <utility>

#include "tfring_ops/tf/done_op.h"
#include "tfring_ops/tf/op_definitions.h"
#include "tfring_ops/tf/start_op.h"

namespace tfring {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

REGISTER_OP("TfringBarrierStart")
    .Input("prev: int64")
    .Output("handle: int64")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .SetIsStateful()
    .SetShapeFn(ScalarAlone);

REGISTER_OP("TfringBarrierDone")
    .Input("handle: int64")
    .Input("last: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("TfringJoinStart")
    .Input("prev: int64")
    .Output("handle: int64")
    .Attr("request_name: string")
    .Attr("process_set_id: int = 0")
    .SetIsStateful()
    .SetShapeFn(ScalarAlone);

REGISTER_OP("TfringJoinDone")
    .Input("handle: int64")
    .Input("last: int64")
    .Output("last_rank: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarAlone);

class BarrierStartOp : public StartOp {
 public:
  explicit BarrierStartOp(OpKernelConstruction* context)
      : StartOp(context, CollectiveKind::kBarrier) {}

  void Compute(OpKernelContext* context) override {
    Start(context, /*index=*/0, NewEntry(context, request()), nullptr);
  }
};

class BarrierDoneOp : public CollectOp {
 public:
  using CollectOp::CollectOp;

 private:
  void SetOutputs(OpKernelContext*, Outcome) override {}
};

class JoinStartOp : public StartOp {
 public:
  explicit JoinStartOp(OpKernelConstruction* context)
      : StartOp(context, CollectiveKind::kJoin) {}

  void Compute(OpKernelContext* context) override {
    TensorEntry entry = NewEntry(context, request());
    auto tensors = std::make_shared<EntryTensors>();
    tensors->gathered.resize(1);
    entry.on_joined = [tensors](int last_rank) {
      tensors->gathered[0] = Int64Scalar(last_rank);
    };
    Start(context, /*index=*/0, std::move(entry), tensors);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfringBarrierStart").Device(DEVICE_CPU),
                        BarrierStartOp);
REGISTER_KERNEL_BUILDER(Name("TfringBarrierDone").Device(DEVICE_CPU),
                        BarrierDoneOp);
REGISTER_KERNEL_BUILDER(Name("TfringJoinStart").Device(DEVICE_CPU),
                        JoinStartOp);
REGISTER_KERNEL_BUILDER(Name("TfringJoinDone").Device(DEVICE_CPU),
                        GatheredDoneOp);

REGISTER_KERNEL_BUILDER(TFRING_START_ON_GPU("TfringBarrierStart"),
                        BarrierStartOp);
REGISTER_KERNEL_BUILDER(TFRING_DONE_ON_GPU("TfringBarrierDone"), BarrierDoneOp);
REGISTER_KERNEL_BUILDER(TFRING_START_ON_GPU("TfringJoinStart"), JoinStartOp);
REGISTER_KERNEL_BUILDER(
    TFRING_DONE_ON_GPU("TfringJoinDone").HostMemory("last_rank"),
    GatheredDoneOp);

}  // namespace
}  // namespace tfring
