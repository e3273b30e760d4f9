#include <emmintrin.h>

#include <cstddef>
#include <cstring>

#include "tfring_ops/kernels/streaming_copy.h"

namespace tfring {

void StreamingCopy(void* dst, const void* src, size_t bytes) {
  auto* const to = static_cast<__m128i*>(dst);
  const auto* const from = static_cast<const __m128i*>(src);
  const size_t count = bytes / sizeof(__m128i);
  for (size_t i = 0; i < count; ++i) {
    _mm_stream_si128(to + i, _mm_loadu_si128(from + i));
  }
  // Other cores may see such stores after later ones.
  _mm_sfence();
  std::memcpy(to + count, from + count, bytes % sizeof(__m128i));
}

}  // namespace tfring
