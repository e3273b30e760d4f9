// Which tensors travel together.
#ifndef TFRING_OPS_ENGINE_FUSION_H_
#define TFRING_OPS_ENGINE_FUSION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Whether the two may be reduced as one message: allreduces of one dtype with
// the same op and factors.
bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b);

// Cuts the indices of `sizes` into packs, in order.  A pack is one message:
// tensors of at most `kPackLimitBytes` come together up to `threshold_bytes`, a
// larger one stays alone, as to copy it into a common buffer would cost more
// than a message of its own.  Empty tensors are in no pack.
inline constexpr int64_t kPackLimitBytes = 256 << 10;
std::vector<std::vector<int>> PlanPacks(absl::Span<const int64_t> sizes,
                                        int64_t threshold_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_FUSION_H_
