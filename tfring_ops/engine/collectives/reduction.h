// Helpers of the collectives that reduce.
#ifndef TFRING_OPS_ENGINE_COLLECTIVES_REDUCTION_H_
#define TFRING_OPS_ENGINE_COLLECTIVES_REDUCTION_H_

#include <cstddef>
#include <cstdint>

#include "tfring_ops/base/types.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// Fills `memory` with the value that changes no result of `op`.
void FillWithIdentity(const Kernels& kernels, DataType dtype, ReduceOp op,
                      std::byte* memory, int64_t bytes);

// Makes an average a sum that is divided by `contributors`: usually afterwards,
// but before the sum if that could be infinite and the average is not.  See
// Note [Averages of float16 are divided first].
void AverageOver(int contributors, CollectiveRequest& request);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_COLLECTIVES_REDUCTION_H_
