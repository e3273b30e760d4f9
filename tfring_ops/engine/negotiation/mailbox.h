// Messages of any length over a transport, sent and received without waiting.
//
// Not thread-safe.  Takes the transport for itself.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_

#include <cstdint>
#include <deque>
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

  // The next message from `peer`, if it is here.  Leaves a receive posted when
  // it is not: after the peer's last message, do not ask again.
  absl::StatusOr<std::optional<std::string>> Poll(int peer);

  // Forgets messages that have left.  An error if one of them cannot.
  absl::Status Collect();

  // How many messages there have been to send.
  int64_t sent() const { return sent_; }

  // Returns when every message has left, or the first `count`.
  absl::Status Flush() { return Flush(sent_); }
  absl::Status Flush(int64_t count);

 private:
  // A message travels as its length and then its bytes.
  struct Outgoing {
    std::shared_ptr<const std::string> message;
    uint64_t length;
    OperationId length_sent, message_sent;
  };
  struct Incoming {
    enum class Phase { kIdle, kLength, kMessage };
    Phase phase = Phase::kIdle;
    uint64_t length;
    std::string message;
    OperationId request;
  };

  Transport& transport_;
  // std::deque: `length` must not move while it is on its way.
  std::deque<Outgoing> outgoing_;
  int64_t sent_ = 0;
  std::vector<Incoming> incoming_;  // by peer
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_MAILBOX_H_
