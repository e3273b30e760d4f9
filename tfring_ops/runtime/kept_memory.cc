#include "tfring_ops/runtime/kept_memory.h"

#include <malloc.h>

#include <climits>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tfring {
namespace {

// glibc before 2.35 refuses a larger threshold.
constexpr int kOlderMaxMmapThreshold = 32 << 20;

// Returns true if the user has set a tunable, or glibc's older variable for it.
bool IsSet(absl::string_view tunable, const char* variable) {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return std::getenv(variable) != nullptr ||
         (tunables != nullptr && absl::StrContains(tunables, tunable));
}

}  // namespace

void KeepFreedMemory() {
  if (IsSet("malloc.mmap_threshold", "MALLOC_MMAP_THRESHOLD_") ||
      IsSet("malloc.trim_threshold", "MALLOC_TRIM_THRESHOLD_")) {
    return;
  }
  // Take smaller blocks from the kept memory, and not from mmap.
  if (mallopt(M_MMAP_THRESHOLD, INT_MAX) == 0) {
    mallopt(M_MMAP_THRESHOLD, kOlderMaxMmapThreshold);
  }
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

}  // namespace tfring
