// The channels between the ranks of a process set, for its engine.
#ifndef TFRING_OPS_ENGINE_PROCESS_SET_H_
#define TFRING_OPS_ENGINE_PROCESS_SET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/idle_watch.h"
#include "tfring_ops/engine/lane.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Negotiation and data have a channel each, so that no message is mistaken for
// one of the other kind.  Both have the same ranks in the same order.
struct ProcessSet {
  int id = 0;
  std::vector<int32_t> world_ranks;  // see Members; not needed for the world
  std::unique_ptr<Transport> control;
  std::unique_ptr<Transport> data;
  // Makes another channel like `data`, for further buckets on the wire.
  // Collective.  Null if there are no others.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>()> make_data;
  // Makes the lane of this rank's GPU `device`, over `data`, which outlives it,
  // with rank 0's options; kHost where this rank has joined and named none.
  // Called on the engine's thread of every rank, before the first collective on
  // tensors there.  The engine goes on after an error that all ranks have; an
  // error of this rank alone must abort `data`.  Null: there are no GPUs.
  std::function<absl::StatusOr<Lane>(const Options& options, int32_t device,
                                     Transport& data)>
      make_device_lane;
  // Outlives the engine, and serves it until it is first used.  If null, the
  // engine has a thread from the start.
  IdleWatch* idle_watch = nullptr;
  // Outlives the engine.
  const Clock* clock = &SteadyClock();
  // False: the engine has no thread, and whoever submits calls Engine::Look.
  bool has_thread = true;
  // Called on the engine's thread when it ends because a rank is lost; may be
  // empty.  Must not block.
  std::function<void(const absl::Status&)> on_lost;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_PROCESS_SET_H_
