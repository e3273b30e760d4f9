// Makes the lane of a GPU for the engine, which knows no CUDA.
#ifndef TFRING_OPS_RUNTIME_DEVICE_LANE_H_
#define TFRING_OPS_RUNTIME_DEVICE_LANE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/lane.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/nccl/launch_order.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// See ProcessSet::make_device_lane.  `options` must be the same on all ranks;
// `place` is the process set's.
absl::StatusOr<Lane> MakeDeviceLane(const Options& options, int32_t device,
                                    Transport& data, LaunchPlace place = {});

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_DEVICE_LANE_H_
