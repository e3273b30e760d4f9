// Copies for a reader on another core.
#ifndef TFRING_OPS_KERNELS_STREAMING_COPY_H_
#define TFRING_OPS_KERNELS_STREAMING_COPY_H_

#include <cstddef>

namespace tfring {

// As memcpy, by stores that go past this core's caches, where the CPU has such:
// no line of `dst` is fetched before it is written.  A store that follows, and
// that another thread sees, comes after them.
// REQUIRES: `dst` is a multiple of 16.
void StreamingCopy(void* dst, const void* src, size_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_STREAMING_COPY_H_
