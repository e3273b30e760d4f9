// Sends and receives messages of any length over a transport without waiting,
// and between them heartbeats, of which only the latest counts.
//
// Not thread-safe.  Nobody else may use the transport.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class Mailbox {
 public:
  // REQUIRES: `transport` outlives the mailbox.
  explicit Mailbox(Transport& transport);

  // Starts to send `message`.  Messages to one peer arrive in the order of
  // these calls.
  void Send(int peer, std::shared_ptr<const std::string> message);

  // Starts to send a heartbeat, unless the last one is still on its way:
  // heartbeats to a peer that takes nothing must not pile up.
  void SendHeartbeat(int peer, std::shared_ptr<const std::string> heartbeat);

  // Returns the next message from `peer`, if it has arrived.  Otherwise a
  // receive stays posted: after the peer's last message, do not call this
  // again.  Messages on their way out may move on in Collect alone.
  absl::StatusOr<std::optional<std::string>> Poll(int peer);

  // Receives the heartbeats from `peer` that have arrived, up to its next
  // message, which is kept for Poll.  After the peer's last message, do not
  // call this again.
  absl::Status Listen(int peer);

  // The messages that have arrived from a peer.
  struct Heard {
    int64_t count = 0;  // The number of messages and heartbeats.
    int64_t heartbeats = 0;
    std::string heartbeat;  // The last heartbeat.
  };
  const Heard& heard(int peer) const { return incoming_[peer].heard; }

  // Moves messages on their way out, and frees those that have left.  An error
  // if a message cannot leave.  It looks at all of them: call it once for each
  // round of Poll.
  absl::Status Collect();

  // Returns how many messages were to be sent so far, heartbeats included.
  int64_t sent() const { return sent_; }

  // Returns true if the first `count` of these have left.
  absl::StatusOr<bool> HaveLeft(int64_t count);

  // Keeps the memory of messages that are on their way.  This is the last call.
  void KeepMemory();

  // Returns when every message has left.
  absl::Status Flush();

 private:
  // A message travels as a head, which has a fixed size and room for a short
  // message, and as the rest of its bytes, if there is any.
  struct Head {
    static constexpr size_t kRoom = 56;
    uint64_t length;  // It also says if the message is a heartbeat.
    char text[kRoom];
  };
  struct Outgoing {
    std::shared_ptr<const std::string> message;
    Head head;
    OperationId head_sent, rest_sent;
    int64_t number;         // from 1 on
    int heartbeat_to = -1;  // a peer
  };
  struct Incoming {
    enum class Phase { kIdle, kHead, kRest, kHere };
    Phase phase = Phase::kIdle;
    Head head;
    std::string message;
    OperationId request;
    Heard heard;
  };

  Outgoing& Start(int peer, std::shared_ptr<const std::string> message,
                  uint64_t flag);

  Transport& transport_;
  // Messages in the order of their numbers.  It is a std::list: a message that
  // a peer does not take keeps its place, and `head` its address.
  std::list<Outgoing> outgoing_;
  int64_t sent_ = 0;
  std::vector<Incoming> incoming_;             // by peer
  std::vector<bool> heartbeat_is_on_its_way_;  // by peer
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_
