// Messages between GPUs of one node: a rank reads where its peer has written.
//
// Each rank has memory that it exports once, with slots for every peer.  The
// sender copies a part into a free slot, sets the flag `filled` (ipc_flags.h)
// and sends a token by the host's transport; the receiver's stream waits for
// the flag and reads the slot, by a copy or by the kernel that reduces it.  It
// sets the flag `emptied` and sends a token back, and the slot is free.
//
// Data in memory that the sender has also exported (the fusion buffer) is not
// copied: the token says where it is, and the receiver reads it there.
//
// Note [Read in place]
// Three waits keep memory that is read in place unchanged until it has been
// read:
// - The receiver's stream reads after the flag `filled`, which the sender's
//   sets after all work that writes the part.
// - A send is complete when the reader's token has arrived, and a wait for it
//   has the sender's stream wait for the flag `emptied`.  The algorithms
//   overwrite sent data only after they have waited for the send, as any
//   transport requires; the ring's own order (a chunk comes round when its
//   neighbour has read it) does not hold for the next block of a stage, nor for
//   recursive doubling.
// - Before the memory is freed, every rank waits for its stream and closes the
//   memory, and all ranks synchronize: see CudaLinks::Export.  The second wait
//   covers only work enqueued before it, here or by the peer, so streams never
//   wait for each other in a cycle.  It is enqueued when the algorithm waits
//   for the send, and not when the token arrives: in a ring that is one
//   primitive later, and neighbours need not take turns.
//
// Note [One part after the other]
// A flag only grows, so the two streams that fill slots must set it in the
// order of the parts.  A stream waits until the outgoing stream's copy of a
// part into the slot, and its flag, are done before it sets the flag for a part
// outside of the slots (AwaitCopies); and before it copies a message, the
// outgoing stream waits for all work of the first stream (FillSlot).
#ifndef TFRING_OPS_TRANSPORT_CUDA_CUDA_IPC_H_
#define TFRING_OPS_TRANSPORT_CUDA_CUDA_IPC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tfring_ops/transport/cuda/cuda_link.h"
#include "tfring_ops/transport/cuda/ipc_flags.h"

namespace tfring {

// A rank's message to a peer, by which the peer can open its memory.
struct IpcOffer {
  CUipcMemHandle memory;
  uint64_t offset;        // of the slots to this peer
  IpcFlags::Offer flags;  // that the peer sets
};

// This rank's memory and flags for all its peers.
// Calls are made in the device's context.
class IpcMemory {
 public:
  static absl::StatusOr<std::unique_ptr<IpcMemory>> Create(
      const CudaLinkContext& context, int peers);
  ~IpcMemory();
  IpcMemory(const IpcMemory&) = delete;
  IpcMemory& operator=(const IpcMemory&) = delete;

  // Returns the offer for the peer with number `index`, counted from 0.
  const IpcOffer& offer(int index) const { return offers_[index]; }
  std::byte* slots(int index) const {
    return static_cast<std::byte*>(DeviceMemory(memory_)) +
           offers_[index].offset;
  }
  // Returns the flags that the peer sets.
  IpcPeerFlags flags(int index) const { return flags_->of_peer(index); }

  // Exports memory besides the slots, which peers read in place.
  absl::StatusOr<CUipcMemHandle> Export(Bytes memory);
  void ExportNone() { exported_ = {}; }
  const Bytes& exported() const { return exported_; }

 private:
  explicit IpcMemory(const CudaLinkContext& context) : context_(context) {}
  absl::Status Open(int peers);

  const CudaLinkContext& context_;
  CUdeviceptr memory_ = 0;
  Bytes exported_;
  std::vector<IpcOffer> offers_;
  std::unique_ptr<IpcFlags> flags_;
};

// Returns the link to the peer with number `index`, which has made `offer`.
// REQUIRES: `context` and `memory` outlive the link.
absl::StatusOr<std::unique_ptr<CudaLink>> OpenIpcLink(
    const CudaLinkContext& context, const IpcMemory& memory, int index,
    int peer, const IpcOffer& offer);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_CUDA_IPC_H_
