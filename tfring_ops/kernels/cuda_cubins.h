// The kernels as machine code for some GPUs, which spares the driver the
// compilation: that takes a second, and needs a library of its own.
//
// cuda_cubins.cc has the code that `ptxas` has made of cuda_kernels.ptx.  If
// the build finds no `ptxas`, cuda_no_cubins.cc takes its place.
#ifndef TFRING_OPS_KERNELS_CUDA_CUBINS_H_
#define TFRING_OPS_KERNELS_CUDA_CUBINS_H_

#include "absl/types/span.h"

namespace tfring {

struct CudaCubin {
  int capability;     // the compute capability it was made for: 80 is 8.0
  const void* image;  // the argument for cuModuleLoadData
};

// The built-in code, in the order of capabilities.  There may be none.
absl::Span<const CudaCubin> CudaCubins();

// Returns the last of `cubins` that runs on GPUs of this capability, that is of
// the same generation and no newer, or null if there is none.
inline const CudaCubin* CubinFor(int capability,
                                 absl::Span<const CudaCubin> cubins) {
  const CudaCubin* found = nullptr;
  for (const CudaCubin& cubin : cubins) {
    if (cubin.capability / 10 == capability / 10 &&
        cubin.capability <= capability) {
      found = &cubin;
    }
  }
  return found;
}

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CUDA_CUBINS_H_
