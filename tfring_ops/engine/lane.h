// The means of collectives on one kind of memory.
#ifndef TFRING_OPS_ENGINE_LANE_H_
#define TFRING_OPS_ENGINE_LANE_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/stream_collectives.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

struct Lane {
  // A device's alone: returns when it has done all that it was asked for.  Owns
  // the device.
  std::function<absl::Status()> finish;
  void* stream = nullptr;            // the device's, which the kernels work on
  const Kernels* kernels = nullptr;  // the device's, or alive for ever
  std::unique_ptr<Transport> transport;
  // A device's alone: the library that does collectives in the ring's place, if
  // any.
  std::unique_ptr<StreamCollectives> collectives;
  // A device's alone, if the process sets of a process must launch in one
  // order: returns when it is this set's turn; the turn ends with the returned
  // object.  Collective over its ranks.
  std::function<absl::StatusOr<std::shared_ptr<void>>()> await_turn;
  // A device's alone: the costs of its links and kernels, the same on all
  // ranks.
  std::optional<Costs> costs;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_LANE_H_
