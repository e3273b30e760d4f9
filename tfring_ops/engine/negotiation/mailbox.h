// Messages of any length over a transport, sent and received without waiting;
// and heartbeats between them, of which only the latest counts.
//
// Not thread-safe.  Takes the transport for itself.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_

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

  // Starts to send `message`.  Messages to one peer arrive in this order.
  void Send(int peer, std::shared_ptr<const std::string> message);

  // Starts to send a heartbeat, unless the one before it has not left: a peer
  // that takes nothing is not sent ever more of them.
  void SendHeartbeat(int peer, std::shared_ptr<const std::string> heartbeat);

  // The next message from `peer`, if it is here.  Leaves a receive posted when
  // it is not: after the peer's last message, do not ask again.
  absl::StatusOr<std::optional<std::string>> Poll(int peer);

  // Takes in the heartbeats from `peer` that are here, up to its next message,
  // which is kept for Poll.  After the peer's last message, do not ask again.
  absl::Status Listen(int peer);

  // Counts the messages from a peer.
  struct Heard {
    int64_t count = 0;  // messages and heartbeats
    int64_t heartbeats = 0;
    std::string heartbeat;  // the last one
  };
  const Heard& heard(int peer) const { return incoming_[peer].heard; }

  // Forgets messages that have left.  An error if one of them cannot.
  absl::Status Collect();

  // How many messages there have been to send, heartbeats included.
  int64_t sent() const { return sent_; }

  // Returns true if the first `count` of them have left.
  absl::StatusOr<bool> HaveLeft(int64_t count);

  // Never frees messages that are on their way; the last call.
  void KeepMemory();

  // Returns when every message has left.
  absl::Status Flush();

 private:
  // A message travels as its length and then its bytes.  The length says if it
  // is a heartbeat.
  struct Outgoing {
    std::shared_ptr<const std::string> message;
    uint64_t length;
    OperationId length_sent, message_sent;
    int64_t number;         // from 1 on
    int heartbeat_to = -1;  // a peer
  };
  struct Incoming {
    enum class Phase { kIdle, kLength, kMessage, kHere };
    Phase phase = Phase::kIdle;
    uint64_t length;
    std::string message;
    OperationId request;
    Heard heard;
  };

  Outgoing& Start(int peer, std::shared_ptr<const std::string> message,
                  uint64_t flag);

  Transport& transport_;
  // In the order of their numbers. std::list: a message that cannot leave, as
  // its peer takes nothing, keeps its place, and `length` its address.
  std::list<Outgoing> outgoing_;
  int64_t sent_ = 0;
  std::vector<Incoming> incoming_;             // by peer
  std::vector<bool> heartbeat_is_on_its_way_;  // by peer
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_
