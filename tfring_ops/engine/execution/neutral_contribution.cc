#include "tfring_ops/engine/execution/neutral_contribution.h"

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {

NeutralContribution::NeutralContribution(const CollectiveRequest& request) {
  entry_.request = request;
  // A prescale factor could turn the identity into another value, such as
  // infinity into minus infinity.
  entry_.is_neutral = true;
  CollectiveOf(request.kind).MakeNeutral(entry_.request);
}

absl::Status NeutralContribution::Allocate(const Kernels& kernels) {
  const CollectiveRequest& request = entry_.request;
  for (const TensorInfo& tensor : request.tensors) {
    const int64_t bytes = SizeInBytes(request.dtype, tensor);
    TFRING_ASSIGN_OR_RETURN(std::byte* const memory,
                            memory_.emplace_back(kernels).AtLeast(bytes));
    CollectiveOf(request.kind).FillNeutral(kernels, request, memory, bytes);
    entry_.buffers.push_back({memory, memory});
  }
  entry_.allocate_output =
      [this](int index,
             const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
    const TensorInfo output{"", dims};
    return memory_[index].AtLeast(SizeInBytes(entry_.request.dtype, output));
  };
  return kernels.Synchronize();
}

}  // namespace tfring
