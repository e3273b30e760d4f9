// Statistics of offloaded feature maps, for Python.
#ifndef TFRING_OPS_CAPI_OFFLOAD_H_
#define TFRING_OPS_CAPI_OFFLOAD_H_

#include <cstdint>

#include "tfring_ops/capi/capi.h"

// Writes the fields of PlanStatistics, in their order, the tier's at the end,
// to `fields`, which has room for `count`.  Returns 0, or 1 if no step of that
// plan has begun yet, and nothing was written.
TFRING_EXPORT int32_t tfring_offload_statistics(int64_t plan, int64_t* fields,
                                                int32_t count);

#endif  // TFRING_OPS_CAPI_OFFLOAD_H_
