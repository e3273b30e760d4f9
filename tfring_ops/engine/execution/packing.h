// Decides which tensors of a bucket travel together, and packs them in the
// fusion buffer: small ones, and all that change their type or are scaled on
// the wire.
//
// Not thread-safe.
#ifndef TFRING_OPS_ENGINE_EXECUTION_PACKING_H_
#define TFRING_OPS_ENGINE_EXECUTION_PACKING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/algorithms/ring/staged_allreduce.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

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

// Copies the pieces' inputs in a row, with the gaps of Note [Aligned borders],
// as the type of the wire and times the factor of each; and copies the results
// to their outputs, as the type of the tensors.
class Packing final : public Staging {
 public:
  // REQUIRES: what it is given outlives it; there is a factor for each piece.
  Packing(const Kernels& kernels, const CollectiveRequest& request,
          absl::Span<const RingPiece> pieces, absl::Span<const double> factors)
      : kernels_(kernels),
        request_(request),
        pieces_(pieces),
        factors_(factors) {}

  void Load(Range range, std::byte* to) override;
  void Store(Range range, const std::byte* from) override;

 private:
  // Calls visit(index, first, count, place) for the part of each piece that is
  // in `range`, `place` elements behind its beginning.
  template <typename Visitor>
  void ForEachPart(Range range, const Visitor& visit) const;

  const Kernels& kernels_;
  const CollectiveRequest& request_;
  const absl::Span<const RingPiece> pieces_;
  const absl::Span<const double> factors_;
  std::vector<CopyPiece> copies_;  // of one call of the kernels'
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_PACKING_H_
