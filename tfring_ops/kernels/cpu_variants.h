// The kernels' loops, compiled for several kinds of CPU into one library.  It
// runs on any CPU of the architecture, and fast on the newer ones.
//
// A unit cpu_<architecture>_<kind>.cc is one kind, compiled with flags of its
// own (tools/native.mk, BUILD); cpu_<architecture>_variants.cc lists them.
// Thread-safe.
#ifndef TFRING_OPS_KERNELS_CPU_VARIANTS_H_
#define TFRING_OPS_KERNELS_CPU_VARIANTS_H_

#include <cstdint>
#include <vector>

#include "tfring_ops/base/types.h"

namespace tfring {

// The functions of kernels.h for some CPUs.  They are function pointers,
// because the linker would share the parts of a class between compilation units
// (cpu_loops.h).
struct CpuVariant {
  const char* name;
  void (*reduce)(void* dst, const void* a, const void* b, int64_t count,
                 DataType dtype, ReduceOp op);
  void (*scale)(void* dst, const void* src, int64_t count, DataType dtype,
                double factor);
  // dst[i] = src[i], between two types for which CanTravelAs holds in one
  // direction.
  void (*convert)(void* dst, DataType to, const void* src, DataType from,
                  int64_t count);
};

// Returns the variants that this CPU can run, fastest first.  The last one runs
// on every CPU.
std::vector<const CpuVariant*> SupportedCpuVariants();

// The variants depend on the architecture.
extern const CpuVariant kCpuBaseline;
extern const CpuVariant kCpuAvx2;
extern const CpuVariant kCpuAvx512;
extern const CpuVariant kCpuNeon;

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CPU_VARIANTS_H_
