// Ranks of a job in simulated time: the code that they run is real, and the
// network between them is a model.
//
// Each rank is a fiber of the calling thread.  The clock stands still while a
// rank computes.  When all ranks wait, it moves to the next event.  So a run
// has the same order and the same times on every machine.
//
// The model: a message takes each link of its path when the link is free, in
// the order in which messages are sent, for its bytes at the link's rate; its
// first byte passes a link while its last one is still on the link before
// (cut-through switching).  Between ranks of a node the path is the sender's
// memory and the receiver's.  Between nodes it is the link out of the one and
// the link into the other, with a link up to the spine of a fat tree and one
// down in between.  Of CPU load, TCP, adaptive routing and the loss of packets
// it knows nothing.
//
// Not thread-safe, and not for sanitizers, which do not know about fibers.
#ifndef TFRING_TESTS_CPP_SIMULATED_JOB_H_
#define TFRING_TESTS_CPP_SIMULATED_JOB_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/cpp/fibers.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct SimulatedLink {
  double latency_seconds;
  double bytes_per_second;
};

struct SimulatedNetwork {
  int nodes = 1;
  int ranks_per_node = 1;
  // Of each rank, to and from ranks of its node.
  SimulatedLink within{2e-6, 8e9};
  // Of each node, or with `link_per_rank` of each rank, to and from other
  // nodes.
  SimulatedLink across{20e-6, 12.5e9};
  bool link_per_rank = false;
  // The time of a rank for each message that it sends or receives.
  double handling_seconds = 0;
  // A fat tree: leaf switches of so many nodes, and the links of each to the
  // spine.  The link is chosen by the receiving node.  0 is one switch for all.
  int nodes_per_leaf = 0;
  int uplinks_per_leaf = 0;
  // Unless this is 0, nodes are connected to the leaves in a random order.
  uint32_t placement_seed = 0;
  // A message is late by a random time of up to this, and so are those behind
  // it.
  double jitter_seconds = 0;
  uint32_t jitter_seed = 0;
};

class SimulatedJob {
 public:
  explicit SimulatedJob(const SimulatedNetwork& network);
  ~SimulatedJob();

  int size() const;

  // Runs `body` on every rank that lives, with the rank's transport, which is
  // the same in all runs.  All begin at the same time.  Returns the seconds
  // until the last one has ended, or the first error.  Internal, with their
  // numbers, if some ranks wait for ever: the objects on their stacks are then
  // never destroyed, and there may be no other run.
  absl::StatusOr<double> Run(
      const std::function<absl::Status(Transport&)>& body);

  // The rank that runs stands still for this time.
  void Sleep(double seconds);
  // The rank that runs waits until one of its operations, on any transport,
  // completes that was not complete at the time `since`, until another rank
  // dies, or for `longest_seconds`.
  void Pause(double since, double longest_seconds = kNever);

  // Calls `call` at the time `seconds`, or at once if that is past, while no
  // rank runs; then ends the Pause of the rank that runs now.  Does nothing if
  // that rank has ended by then.
  void At(double seconds, std::function<void()> call);

  // Takes another transport of the rank that runs: number 1 or 2, each once.
  // Messages do not go from one to the other, and take the same links.
  std::unique_ptr<Transport> Take(int channel);

  // The time of the job, which begins at 0.
  double now() const;
  const Clock& clock() const;

  // At the time `seconds` the rank ends.  Every operation with it that is not
  // complete by then fails on its peers, with Unavailable.
  void Kill(int rank, double seconds);

  // From now on messages from this memory have a size and no contents, so that
  // ranks with large buffers can share one.
  void LeaveOut(ConstBytes memory);

  // The largest number of pairs of ranks whose messages have used one link out
  // of a node, since the last call.
  int TakeStreams();

 private:
  class Network;
  class Rank;
  class SimulatedClock;

  static constexpr int kChannels = 3;
  struct Channel {
    std::vector<Rank*> ranks;
    std::vector<std::unique_ptr<Rank>> kept;  // null if it is taken
  };
  // What ends the wait of a rank.
  struct Waits {
    bool for_any = false;   // any operation does, not only one
    bool has_news = false;  // something has happened since it last attended
  };

  bool IsLeftOut(ConstBytes data) const;

  std::unique_ptr<Network> network_;
  std::unique_ptr<Fibers> fibers_;
  std::unique_ptr<SimulatedClock> clock_;
  std::vector<Waits> waits_;  // by rank
  Channel channels_[kChannels];
  absl::Status failure_;  // of Abort
  ConstBytes left_out_;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CPP_SIMULATED_JOB_H_
