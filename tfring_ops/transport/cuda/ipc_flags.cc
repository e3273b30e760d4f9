#include "tfring_ops/transport/cuda/ipc_flags.h"

#include <cstddef>
#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

// One peer's flags, in cache lines of their own.
struct alignas(64) IpcFlags::Block {
  std::array<std::atomic<uint32_t>, kIpcSlots> filled;
  std::atomic<uint32_t> emptied, ready;
};

absl::StatusOr<std::unique_ptr<IpcFlags>> IpcFlags::Create(
    const CudaDriver& driver, int peers) {
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<PinnedSegment> segment,
                          PinnedSegment::Create(driver, peers * sizeof(Block)));
  return std::unique_ptr<IpcFlags>(new IpcFlags(std::move(segment), peers));
}

absl::StatusOr<std::unique_ptr<IpcFlags>> IpcFlags::Open(
    const CudaDriver& driver, const Offer& offer) {
  TFRING_ASSIGN_OR_RETURN(
      std::unique_ptr<PinnedSegment> segment,
      PinnedSegment::Open(driver, offer.segment, offer.peers * sizeof(Block)));
  return std::unique_ptr<IpcFlags>(
      new IpcFlags(std::move(segment), offer.peers));
}

IpcPeerFlags IpcFlags::of_peer(int index) const {
  auto& block = reinterpret_cast<Block*>(segment_->data())[index];
  const auto flag = [&](std::atomic<uint32_t>& value) {
    IpcFlag made;
    made.value_ = &value;
    made.address_ = segment_->device() +
                    (reinterpret_cast<std::byte*>(&value) - segment_->data());
    return made;
  };
  IpcPeerFlags flags;
  for (int slot = 0; slot < kIpcSlots; ++slot) {
    flags.filled[slot] = flag(block.filled[slot]);
  }
  flags.emptied = flag(block.emptied);
  flags.ready = flag(block.ready);
  return flags;
}

}  // namespace tfring
