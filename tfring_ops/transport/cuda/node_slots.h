// Messages between GPUs of one node through memory of the host that both ranks
// have pinned.
//
// The sender's GPU copies a part into a slot, and the receiver's copies it from
// there: no processor of the host touches a byte, and nothing goes by the
// host's transport. Numbers in the same memory say how many parts lie there and
// how many have been taken. A host writes one when it has seen that its GPU's
// copy is over: so no GPU ever waits for another rank, which may be lost, and
// who waits here learns of that from the host's transport.
//
// Calls are made in the device's context.
#ifndef TFRING_OPS_TRANSPORT_CUDA_NODE_SLOTS_H_
#define TFRING_OPS_TRANSPORT_CUDA_NODE_SLOTS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "tfring_ops/transport/cuda/cuda_link.h"
#include "tfring_ops/transport/cuda/pinned_segment.h"

namespace tfring {

// What this rank sends to the peers of its node: the numbers.  The slots to a
// peer are made when a first message goes there, as most ranks talk to two.
class NodeSlots {
 public:
  // A message with which a peer can open them.
  struct Offer {
    SegmentAddress segment;
    int32_t peers = 0;
    int32_t index = 0;  // of the process that gets it
  };
  struct Numbers;

  // Where pinning such memory fails, this does, and opening it.
  static absl::StatusOr<std::unique_ptr<NodeSlots>> Create(
      const CudaDriver& driver, int peers);
  static absl::StatusOr<std::unique_ptr<NodeSlots>> Open(
      const CudaDriver& driver, const Offer& offer);

  // REQUIRES: this rank has created them.
  Offer offer(int index) const { return {segment_->address(), peers_, index}; }
  Numbers& to_peer(int index) const;

 private:
  NodeSlots(std::unique_ptr<PinnedSegment> segment, int peers)
      : segment_(std::move(segment)), peers_(peers) {}

  const std::unique_ptr<PinnedSegment> segment_;
  const int peers_;
};

// The link to the peer with number `index`, which has made `offer`.
// REQUIRES: `context` and `own` outlive the link, and ranks meet before they
// end it.
absl::StatusOr<std::unique_ptr<CudaLink>> OpenNodeLink(
    const CudaLinkContext& context, const NodeSlots& own, int index, int peer,
    const NodeSlots::Offer& offer);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_NODE_SLOTS_H_
