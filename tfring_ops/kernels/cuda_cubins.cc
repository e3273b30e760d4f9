#include "tfring_ops/kernels/cuda_cubins.h"

// A cubin for each generation, in order; tools/native.mk (CUBINS) makes them.
#define TFRING_FOR_EACH_CUBIN(MACRO) \
  MACRO(60) MACRO(70) MACRO(80) MACRO(90) MACRO(100) MACRO(120)

#define TFRING_INCLUDE_CUBIN(CAPABILITY)              \
  asm(".section .rodata\n"                            \
      ".globl tfring_cubin_" #CAPABILITY              \
      "\n"                                            \
      ".hidden tfring_cubin_" #CAPABILITY             \
      "\n"                                            \
      ".balign 16\n"                                  \
      "tfring_cubin_" #CAPABILITY                     \
      ":\n"                                           \
      ".incbin \"build/native/cubins/sm_" #CAPABILITY \
      ".cubin\"\n"                                    \
      ".previous\n");                                 \
  extern "C" const char tfring_cubin_##CAPABILITY[];
TFRING_FOR_EACH_CUBIN(TFRING_INCLUDE_CUBIN)

namespace tfring {

absl::Span<const CudaCubin> CudaCubins() {
#define TFRING_CUBIN(CAPABILITY) {CAPABILITY, tfring_cubin_##CAPABILITY},
  static constexpr CudaCubin kCubins[] = {TFRING_FOR_EACH_CUBIN(TFRING_CUBIN)};
  return kCubins;
}

}  // namespace tfring
