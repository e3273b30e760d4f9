// The arithmetic of Adasum: of two whole tensors, not element by element, so
// that it is no ReduceOp of Kernels.  On host memory.  Thread-safe.
#ifndef TFRING_OPS_KERNELS_ADASUM_H_
#define TFRING_OPS_KERNELS_ADASUM_H_

#include <cstdint>

#include "tfring_ops/base/types.h"

namespace tfring {

// Returns true for float16, bfloat16, float32 and float64.
bool HasAdasum(DataType dtype);

// dst = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// Everything is computed in double and rounded once.  The bits are the same
// wherever `a` and `b` are the same; with `a` and `b` exchanged, the last bit
// may differ.  A tensor of zeros changes nothing.  `dst` may be `a` or `b`; no
// other overlap.
//
// REQUIRES: HasAdasum(dtype).
void Adasum(void* dst, const void* a, const void* b, int64_t count,
            DataType dtype);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_ADASUM_H_
