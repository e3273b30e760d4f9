// Messages between ranks of one node through shared memory, and by another
// transport between the rest.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_MEMORY_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "tfring_ops/transport/shared_memory/shared_channel.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The channels in both directions between this rank and a peer; null if they
// share no memory.
struct SharedLink {
  SharedChannel* outgoing = nullptr;
  SharedChannel* incoming = nullptr;
};

// `links[peer]` carries the messages to and from a peer, and `others` the
// messages of peers without a link; `others` also carries an abort.  Both ends
// agree on who has a link.  `memory` owns what the links point to.
//
// A send is complete when its bytes are in shared memory, for which it may need
// the receiver.  A wait of more than `timeout_seconds` returns
// DeadlineExceeded; 0 means no limit.
std::unique_ptr<Transport> MakeSharedMemoryTransport(
    std::unique_ptr<Transport> others, const std::vector<SharedLink>& links,
    size_t ring_bytes, std::shared_ptr<void> memory, double timeout_seconds);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_MEMORY_H_
