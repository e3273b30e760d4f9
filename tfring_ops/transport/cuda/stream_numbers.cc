#include "tfring_ops/transport/cuda/stream_numbers.h"

#include <utility>

namespace tfring {

absl::Status StreamNumbers::Flush() {
  if (kept_.empty()) return absl::OkStatus();
  ++calls_;
  std::vector<CudaStreamOperation> kept;
  kept.swap(kept_);
  const absl::Status status = driver_.cuStreamBatchMemOp(
      stream_, static_cast<unsigned>(kept.size()), kept.data(), /*flags=*/0);
  kept.clear();
  kept_.swap(kept);  // its memory is used again
  return status;
}

}  // namespace tfring
