// Counts the bytes of the messages that this process sends.
//
// Thread-safe, except for the transports.
#ifndef TFRING_OPS_TRANSPORT_COUNTING_H_
#define TFRING_OPS_TRANSPORT_COUNTING_H_

#include <cstdint>
#include <memory>

#include "tfring_ops/transport/transport.h"

namespace tfring {

struct SentBytes {
  int64_t within_node = 0;
  int64_t between_nodes = 0;
};

// The bytes of `kind` that all of this process's counting transports have sent
// since it began.
SentBytes SentBytesOf(MessageKind kind);

// Forwards all calls to `inner`, and counts each message when its send starts,
// as control until CountAs says otherwise.
std::unique_ptr<Transport> MakeCountingTransport(
    std::unique_ptr<Transport> inner);

// Counts a transport's messages as one kind until the scope ends.
class CountedAs {
 public:
  CountedAs(Transport& transport, MessageKind kind)
      : transport_(transport), before_(transport.CountAs(kind)) {}
  ~CountedAs() { transport_.CountAs(before_); }
  CountedAs(const CountedAs&) = delete;
  CountedAs& operator=(const CountedAs&) = delete;

 private:
  Transport& transport_;
  const MessageKind before_;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_COUNTING_H_
