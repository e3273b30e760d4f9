// Which tensors travel together.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Returns true if the two may be reduced as one message: allreduces of one
// dtype, on the wire too, with the same op and factors.
bool Fusible(const CollectiveRequest& a, const CollectiveRequest& b);

// Tensors that are one message: reduced where they lie, or, as a message of
// many small parts would be slow, copied together.
struct Pack {
  enum class Place { kTensors, kStage };

  Place place;
  std::vector<int> tensors;  // indices, in order
};

// Cuts the indices of `sizes` into packs of up to `threshold_bytes`, in order:
// tensors of at most kStagedBytes and larger ones each by themselves.  A tensor
// above the threshold stays alone, and an empty one is in no pack.
inline constexpr int64_t kStagedBytes = 32 << 10;
std::vector<Pack> PlanPacks(absl::Span<const int64_t> sizes,
                            int64_t threshold_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_FUSION_H_
