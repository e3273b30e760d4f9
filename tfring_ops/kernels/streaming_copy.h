// Copies for a reader on another core.
#ifndef TFRING_OPS_KERNELS_STREAMING_COPY_H_
#define TFRING_OPS_KERNELS_STREAMING_COPY_H_

#include <cstddef>

namespace tfring {

// Copies as memcpy does, with stores that bypass this core's caches if the CPU
// has such stores: no line of `dst` is fetched before it is written.  A thread
// that sees a later store sees these, too.
// REQUIRES: `dst` is a multiple of 16.
void StreamingCopy(void* dst, const void* src, size_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_STREAMING_COPY_H_
