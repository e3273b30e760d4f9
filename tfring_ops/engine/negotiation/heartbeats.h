// Finds out which ranks of a process set are silent: their processes hang or
// were stopped, or their machines cannot be reached.
//
// The engine of a rank runs even while its script computes.  Every engine sends
// the coordinator a heartbeat from time to time, whatever it waits for.  The
// coordinator sends every rank one, which says who is silent, and every rank
// watches the coordinator.  So a rank sends and receives the same few messages
// a second however many ranks there are, and the coordinator two for each rank.
//
// Not thread-safe.
//
// Invariants:
// - A look at the wrong time does nothing but read the clock that it is given.
// - A rank that has not looked for a while itself calls nobody silent.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_HEARTBEATS_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_HEARTBEATS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/negotiation/mailbox.h"

namespace tfring {

class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  struct Silent {
    int32_t rank;
    Clock::time_point since;
  };

  // REQUIRES: `mailbox` outlives this.
  Heartbeats(const Options& options, int rank, int size, Mailbox& mailbox,
             Clock::time_point now);

  // Says whether this rank will send nothing more.
  void StopSending() { sends_ = false; }
  void GoOnSending() { sends_ = true; }
  // Says that `peer` will send nothing more.
  void StopListening(int peer) { peers_[peer].listens = false; }

  // Sends the heartbeats that are due, and receives the ones that have arrived.
  absl::Status Look(Clock::time_point now);

  // How often `Look` has to be called; hours if it has nothing to do.
  Clock::duration look() const {
    return period_.count() == 0 ? std::chrono::hours(1) : period_ / 4;
  }

  // The silent ranks, in order.
  const std::vector<Silent>& silent() const { return silent_; }

 private:
  // Counts all ranks as heard now.
  void Spare(Clock::time_point now);
  absl::Status Listen(Clock::time_point now);
  // Finds out who is silent.  Returns true if the silent ranks have changed.
  bool Judge(Clock::time_point now);
  void Send(Clock::time_point now);

  struct Peer {
    bool listens = false;
    // The number of messages and heartbeats that had arrived by then.
    int64_t heard = 0;
    Clock::time_point last;
  };

  const int rank_, size_;
  Mailbox& mailbox_;
  // How often a rank sends, and after how long without a message a rank is
  // silent; 0 if silence is not watched.
  Clock::duration period_{0}, silence_{0};
  bool sends_ = true;
  std::vector<Peer> peers_;
  std::vector<Silent> silent_;
  // The coordinator's last list of silent ranks, and the number of its
  // heartbeats.
  std::vector<Silent> told_;
  int64_t heartbeats_ = 0;
  Clock::time_point last_look_, next_look_, next_send_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_HEARTBEATS_H_
