// Which ranks of a process set are silent: their processes hang or were
// stopped, or their machines cannot be reached.
//
// The engine of a rank lives even while the rank or its script works.  Every
// engine sends the coordinator a heartbeat now and then, whatever it waits for;
// the coordinator sends every rank one, which says who is silent; and every
// rank watches the coordinator.  So a rank sends and receives the same few
// messages a second however many ranks there are, and the coordinator two for
// each of them.
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

  // This rank will send nothing more; or it will, after all.
  void StopSending() { sends_ = false; }
  void GoOnSending() { sends_ = true; }
  // Nor will `peer`.
  void StopListening(int peer) { peers_[peer].listens = false; }

  // Sends the heartbeats that are due, and receives the ones that have arrived.
  absl::Status Look(Clock::time_point now);

  // How often `Look` does more than read the clock; hours if it never does.
  Clock::duration look() const {
    return period_.count() == 0 ? std::chrono::hours(1) : period_ / 4;
  }

  // The silent ranks, in order.
  const std::vector<Silent>& silent() const { return silent_; }

 private:
  // Counts everybody as heard now.
  void Spare(Clock::time_point now);
  absl::Status Listen(Clock::time_point now);
  // Finds out who is silent.  Returns true if the silent ranks have changed.
  bool Judge(Clock::time_point now);
  void Send(Clock::time_point now);

  struct Peer {
    bool listens = false;
    int64_t heard = 0;  // messages and heartbeats, by then
    Clock::time_point last;
  };

  const int rank_, size_;
  Mailbox& mailbox_;
  // How often a rank sends, and after how long one counts as silent; 0 if
  // nobody wants to know.
  Clock::duration period_{0}, silence_{0};
  bool sends_ = true;
  std::vector<Peer> peers_;
  std::vector<Silent> silent_;
  // The coordinator's last list, and the number of its heartbeats.
  std::vector<Silent> told_;
  int64_t heartbeats_ = 0;
  Clock::time_point last_look_, next_look_, next_send_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_HEARTBEATS_H_
