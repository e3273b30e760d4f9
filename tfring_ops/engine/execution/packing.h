// Decides which tensors of a bucket travel together, and packs these in the
// fusion buffer: small tensors, and all that are cast or scaled for the wire.
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

// Tensors that travel as one message.  One tensor may be reduced where it lies;
// several are copied together, because a message of many small parts is slow.
struct Pack {
  enum class Place { kTensors, kStage };

  Place place;
  std::vector<int> tensors;  // Indices of the bucket's tensors, in their order.
};

// Cuts the indices of `sizes`, in order, into packs of up to `threshold_bytes`.
// Tensors of at most kStagedBytes and larger ones are packed apart.  A tensor
// above the threshold is a pack of its own, and an empty one is in none.
inline constexpr int64_t kStagedBytes = 32 << 10;
std::vector<Pack> PlanPacks(absl::Span<const int64_t> sizes,
                            int64_t threshold_bytes);

// Copies the pieces' inputs in a row, with the gaps of Note [Aligned borders],
// as the type of the wire and times the factor of each; and copies the results
// to their outputs, as the type of the tensors.
class Packing final : public Staging {
 public:
  // REQUIRES: the arguments outlive it; there is a factor for each piece.
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
  std::vector<CopyPiece> copies_;  // The pieces of one call of the kernels.
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_PACKING_H_
