#include "tfring_ops/tf/offload_copies.h"

#include <optional>
#include <utility>

#include "tfring_ops/offload/cuda_copier.h"
#include "tfring_ops/tf/gpu_stream.h"

namespace tfring {

absl::StatusOr<std::unique_ptr<Tier::Slot>> AllocateSlot(
    tensorflow::OpKernelContext* context, Plan& plan, int64_t bytes) {
  const std::optional<GpuStream> gpu = GpuStreamOf(context);
  if (!gpu.has_value()) return plan.tier()->Allocate(bytes);
  return plan.TierOfGpu(gpu->device)->Allocate(bytes);
}

void CopyTensor(tensorflow::OpKernelContext* context,
                Copier::Direction direction, const tensorflow::Tensor& tensor,
                Tier::Slot* slot, Copier::Done done) {
  char* const data = const_cast<char*>(tensor.tensor_data().data());
  const auto bytes = static_cast<int64_t>(tensor.TotalBytes());
  if (const std::optional<GpuStream> gpu = GpuStreamOf(context)) {
    const absl::StatusOr<CudaCopier*> copier = CudaCopier::Find(gpu->device);
    if (!copier.ok()) {
      done(copier.status(), 0);
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

}  // namespace tfring
