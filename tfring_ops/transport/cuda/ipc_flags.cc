#include "tfring_ops/transport/cuda/ipc_flags.h"

#include <cstddef>
#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

// What one peer sets, apart from what another does.
struct alignas(64) IpcFlags::Block {
  std::array<std::atomic<uint32_t>, kIpcSlots> filled;
  std::atomic<uint32_t> emptied;
};

absl::StatusOr<std::unique_ptr<IpcFlags>> IpcFlags::Create(
    const CudaDriver& driver, int peers) {
  std::unique_ptr<IpcFlags> flags(new IpcFlags(driver, peers));
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment,
                          SharedSegment::Create(peers * sizeof(Block)));
  TFRING_RETURN_IF_ERROR(flags->Register(std::move(segment)));
  return flags;
}

absl::StatusOr<std::unique_ptr<IpcFlags>> IpcFlags::Open(
    const CudaDriver& driver, const Offer& offer) {
  std::unique_ptr<IpcFlags> flags(new IpcFlags(driver, offer.peers));
  TFRING_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedSegment> segment,
      SharedSegment::Open(offer.segment, offer.peers * sizeof(Block)));
  TFRING_RETURN_IF_ERROR(flags->Register(std::move(segment)));
  return flags;
}

absl::Status IpcFlags::Register(std::unique_ptr<SharedSegment> segment) {
  segment_ = std::move(segment);
  TFRING_RETURN_IF_ERROR(
      driver_.cuMemHostRegister(segment_->data(), peers_ * sizeof(Block),
                                kCudaHostPortable | kCudaHostDeviceMap));
  const absl::Status status = driver_.cuMemHostGetDevicePointer(
      &address_, segment_->data(), /*flags=*/0);
  if (!status.ok()) driver_.cuMemHostUnregister.Result(segment_->data());
  return status;
}

IpcFlags::~IpcFlags() {
  if (address_ != 0) driver_.cuMemHostUnregister.Result(segment_->data());
}

IpcPeerFlags IpcFlags::of_peer(int index) const {
  auto& block = reinterpret_cast<Block*>(segment_->data())[index];
  const auto flag = [&](std::atomic<uint32_t>& value) {
    IpcFlag made;
    made.value_ = &value;
    made.address_ =
        address_ + (reinterpret_cast<std::byte*>(&value) - segment_->data());
    return made;
  };
  IpcPeerFlags flags;
  for (int slot = 0; slot < kIpcSlots; ++slot) {
    flags.filled[slot] = flag(block.filled[slot]);
  }
  flags.emptied = flag(block.emptied);
  return flags;
}

}  // namespace tfring
