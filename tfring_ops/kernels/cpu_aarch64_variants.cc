#include <vector>

#include "tfring_ops/kernels/cpu_variants.h"

namespace tfring {

std::vector<const CpuVariant*> SupportedCpuVariants() {
  return {&kCpuNeon, &kCpuBaseline};
}

}  // namespace tfring
