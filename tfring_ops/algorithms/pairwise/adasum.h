// Adasum by recursive doubling: log2 n rounds; in each, pairs of ranks exchange
// their vectors and combine them.
//
// The dot products are of whole tensors, so a tensor travels alone and whole;
// at 2 ranks that is as much traffic as the ring's, at 8 not twice as much.
//
// Reference: S. Maleki et al., "Scaling distributed training with adaptive
// summation", MLSys 2021 (arXiv:2006.02924); doubling.h for recursive doubling.
#ifndef TFRING_OPS_ALGORITHMS_PAIRWISE_ADASUM_H_
#define TFRING_OPS_ALGORITHMS_PAIRWISE_ADASUM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// data = Adasum of every rank's `data`, bit-identical on every rank.
//
// `received` is scratch of the size of `data`.
// REQUIRES: HasAdasum(dtype).
absl::Status RingAdasum(const RingContext& context, void* data, void* received,
                        int64_t count, DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_PAIRWISE_ADASUM_H_
