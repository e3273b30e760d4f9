// The arithmetic of the ring, in the memory of the buffers.
//
// Thread-safe on the host, where kernels hold no state; kernels that work on a
// stream (cuda.h) belong to the thread that owns it.  An operand may be `dst`
// itself; any other overlap is undefined.  Counts are elements; zero is legal.
// Buffers are aligned to their elements, and may be a device's: only kernels
// and transports read or write them.  float16 and bfloat16 are added and
// multiplied in float and rounded to nearest even.  The bits of a result do not
// depend on the CPU, except for the sign and payload of a NaN.
#ifndef TFRING_OPS_KERNELS_KERNELS_H_
#define TFRING_OPS_KERNELS_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// Elements to be copied.  `to` may equal `from` if the type stays; the two may
// not overlap otherwise.
struct CopyPiece {
  const void* from;
  void* to;
  int64_t count;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  // dst[i] = a[i] op b[i].  Integers wrap round.  kAverage adds.
  virtual void Reduce(void* dst, const void* a, const void* b, int64_t count,
                      DataType dtype, ReduceOp op) const = 0;

  // dst[i] = src[i] * factor, multiplied as double.  Integers are truncated and
  // saturate; bool is not changed.
  virtual void Scale(void* dst, const void* src, int64_t count, DataType dtype,
                     double factor) const = 0;
  void Scale(void* data, int64_t count, DataType dtype, double factor) const {
    Scale(data, data, count, dtype, factor);
  }

  // Copies `bytes`.  `dst` may equal `src`; the two may not overlap otherwise.
  virtual void Copy(void* dst, const void* src, int64_t bytes) const = 0;

  // Copies all pieces.  Elements of type `from` become elements of type `to`,
  // rounded to nearest even (a float64 first to float32), and are then scaled
  // by `factor` as Scale does.
  // REQUIRES: CanTravelAs holds in one of the two directions.
  virtual void CopyPieces(absl::Span<const CopyPiece> pieces, DataType from,
                          DataType to, double factor) const = 0;

  // Copies from host memory, which the caller may reuse when this returns.
  virtual void Upload(void* dst, const void* host, int64_t bytes) const = 0;

  // dst = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b: see adasum.h.
  virtual void Adasum(void* dst, const void* a, const void* b, int64_t count,
                      DataType dtype) const = 0;

  // Orders all work enqueued so far before all later work of the transport of
  // these kernels.  On the host the work is complete when this returns.  On a
  // device the transport and the kernels share a stream, and the host does not
  // wait.  Returns the first error so far.
  virtual absl::Status Synchronize() const = 0;

  // Returns when no work enqueued so far waits for other ranks, or an error if
  // some does.  Call it before other code allocates memory of the device; see
  // Note [Waits of the driver] in cuda.h.  The host has no such waits.
  virtual absl::Status AwaitWork() const = 0;

  // Returns memory that the kernels work on fastest.  ResourceExhausted if
  // there is none left.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) const = 0;
  // Frees memory that Allocate has returned.
  virtual void Free(void* memory) const = 0;
};

// Returns the kernels of the CPU, which are never destroyed.
const Kernels& CpuKernels();

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_KERNELS_H_
