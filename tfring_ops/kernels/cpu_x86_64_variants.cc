#include <vector>

#include "tfring_ops/kernels/cpu_variants.h"

namespace tfring {

// These features imply that the operating system saves their registers.
std::vector<const CpuVariant*> SupportedCpuVariants() {
  std::vector<const CpuVariant*> variants;
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    variants.push_back(&kCpuAvx512);
  }
  if (avx2) variants.push_back(&kCpuAvx2);
  variants.push_back(&kCpuBaseline);
  return variants;
}

}  // namespace tfring
