#include "tfring_ops/kernels/cuda_cubins.h"

namespace tfring {

absl::Span<const CudaCubin> CudaCubins() { return {}; }

}  // namespace tfring
