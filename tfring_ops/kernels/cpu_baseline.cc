#include "tfring_ops/kernels/cpu_loops.h"
#include "tfring_ops/kernels/cpu_variants.h"

namespace tfring {
namespace {

class Unit;
using Baseline = PortableCpu<Unit>;

}  // namespace

const CpuVariant kCpuBaseline = {"baseline", CpuLoops<Baseline>::Reduce,
                                 CpuLoops<Baseline>::Scale,
                                 CpuLoops<Baseline>::Convert};

}  // namespace tfring
