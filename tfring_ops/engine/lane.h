// What collectives on one kind of memory need.
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
  // For a GPU: returns when the GPU has executed everything that was enqueued.
  // Owns the GPU's objects.
  std::function<absl::Status()> finish;
  void* stream = nullptr;  // The GPU's stream, on which the kernels work.
  // Owned by the GPU's objects, or never destroyed.
  const Kernels* kernels = nullptr;
  std::unique_ptr<Transport> transport;
  // For a GPU: a library that does collectives in the ring's place, if there is
  // one.
  std::unique_ptr<StreamCollectives> collectives;
  // For a GPU, if the process sets of a process must launch in one order:
  // returns when it is this set's turn, which ends with the returned object.
  // Collective over the set's ranks.
  std::function<absl::StatusOr<std::shared_ptr<void>>()> await_turn;
  // For a GPU: the costs of its links and kernels, the same on all ranks.
  std::optional<Costs> costs;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_LANE_H_
