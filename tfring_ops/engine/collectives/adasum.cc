#include "tfring_ops/algorithms/pairwise/adasum.h"

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/collectives/reduction.h"

namespace tfring {
namespace {

class Adasum final : public Collective {
 public:
  // Zeros change no Adasum.
  void FillNeutral(const Kernels& kernels, const CollectiveRequest& request,
                   std::byte* memory, int64_t bytes) const override {
    FillWithIdentity(kernels, request.dtype, ReduceOp::kSum, memory, bytes);
  }

  // Adasum combines each tensor by itself.
  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    const Kernels& kernels = context.ring().kernels;
    const TensorEntry& entry = *bucket.entries[0];
    const CollectiveRequest& request = entry.request;
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorEntry::Buffer& buffer = entry.buffers[i];
      const int64_t bytes = SizeInBytes(request.dtype, request.tensors[i]);
      const int64_t count = bytes / SizeInBytes(request.dtype);
      kernels.Scale(buffer.output, buffer.input, count, request.dtype,
                    entry.input_factor());
      TFRING_RETURN_IF_ERROR(kernels.Synchronize());
      TFRING_ASSIGN_OR_RETURN(std::byte* const received,
                              context.scratch().AtLeast(bytes));
      TFRING_RETURN_IF_ERROR(RingAdasum(context.ring(), buffer.output, received,
                                        count, request.dtype));
      kernels.Scale(buffer.output, buffer.output, count, request.dtype,
                    request.postscale_factor);
      TFRING_RETURN_IF_ERROR(kernels.Synchronize());
    }
    // The scratch was as large as the tensor.
    if (context.scratch().bytes() > context.fusion_threshold_bytes()) {
      context.scratch().Clear();
    }
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Adasum)

}  // namespace tfring
