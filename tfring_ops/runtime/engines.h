// The engines of this process, one for each process set.  They are the
// library's one global.
//
// Thread-safe.
#ifndef TFRING_OPS_RUNTIME_ENGINES_H_
#define TFRING_OPS_RUNTIME_ENGINES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/engine/engine.h"

namespace tfring {

// The id of the process set of all ranks.
inline constexpr int32_t kWorldId = 0;

// Starts the world's engine, with options from the environment, on a duplicate
// of the communicator with Fortran handle `comm`.  Collective over it.
absl::Status StartWorld(int32_t comm);

// Starts the engine of process set `id`; see tfring_add_process_set in
// capi/capi.h.
absl::Status AddProcessSet(int32_t id, std::vector<int32_t> ranks,
                           int32_t comm);

// The ranks of a process set that are connected by TCP.
struct SocketRanks {
  int size() const { return static_cast<int>(nodes.size()); }

  int rank = 0;            // This rank's number.
  std::vector<int> nodes;  // The machine of each rank.
  // Returns a connection to a peer by a channel: see ConnectPeer in
  // transport/tcp/tcp.h.  For channel 0 it waits for the peer, and is called
  // for each peer before anything else.  The other channels' threads call it
  // when they need a peer.
  std::function<absl::StatusOr<int>(int channel, int peer)> connect;
};

// Starts the world's engine without MPI, even while another job is losing a
// rank.  A process can have several such jobs in turn, each of a higher
// generation.  See Options for `replaces_ranks`.
//
// The number of a job with a lost rank is never used again.
// REQUIRES: `generation` is positive.
absl::Status StartWorldOnSockets(int64_t generation, const SocketRanks& ranks,
                                 bool replaces_ranks);
absl::Status AddProcessSetOnSockets(int32_t id, std::vector<int32_t> ranks,
                                    const SocketRanks& connected);

// Fails all collectives with `reason`, on all ranks, in the jobs up to this
// generation, even while they start.  Never blocks.
void AbortGeneration(int64_t generation, const std::string& reason);

// Stops the engine of a set, and forgets the set.  Does nothing if there is no
// such set.
void RemoveProcessSet(int32_t id);

// Stops all engines.  Does nothing if there are none.
void StopEngines();

// FailedPrecondition before `tfring_init` and after `tfring_shutdown`,
// InvalidArgument if there is no such set or this rank is not in it.
absl::StatusOr<std::shared_ptr<Engine>> EngineOf(int32_t process_set_id);

}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_ENGINES_H_
