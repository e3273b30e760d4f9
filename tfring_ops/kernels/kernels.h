// The arithmetic of the ring, where the buffers live.
//
// Thread-safe: kernels hold no state.  An operand may be `dst` itself; any
// other overlap is undefined.  Counts are elements; zero is legal.
// Buffers are aligned to their elements.  float16 and bfloat16 are added and
// multiplied in float and rounded to nearest even.  The bits of a result do not
// depend on the CPU, but for the sign and payload of a NaN.
#ifndef TFRING_OPS_KERNELS_KERNELS_H_
#define TFRING_OPS_KERNELS_KERNELS_H_

#include <cstdint>

#include "tfring_ops/base/types.h"

namespace tfring {

class Kernels {
 public:
  virtual ~Kernels() = default;

  // dst[i] = a[i] op b[i].  Integers wrap round.  kAverage adds.
  virtual void Reduce(void* dst, const void* a, const void* b, int64_t count,
                      DataType dtype, ReduceOp op) const = 0;

  // dst[i] = src[i] * factor, multiplied as double.  Integers are truncated and
  // stop at the ends of their range; bool is left as it is.
  virtual void Scale(void* dst, const void* src, int64_t count, DataType dtype,
                     double factor) const = 0;
  void Scale(void* data, int64_t count, DataType dtype, double factor) const {
    Scale(data, data, count, dtype, factor);
  }

  // `dst` and `src` may be the same, and may not overlap otherwise.
  virtual void Copy(void* dst, const void* src, int64_t bytes) const = 0;

  // Returns when everything asked for above has landed in memory.
  virtual void Synchronize() const = 0;
};

// Lives for ever.
const Kernels& CpuKernels();

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_KERNELS_H_
