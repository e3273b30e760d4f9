#include "tfring_ops/transport/cuda/pinned_segment.h"

#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::StatusOr<std::unique_ptr<PinnedSegment>> PinnedSegment::Create(
    const CudaDriver& driver, size_t bytes) {
  std::unique_ptr<PinnedSegment> pinned(new PinnedSegment(driver));
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment,
                          SharedSegment::Create(bytes));
  TFRING_RETURN_IF_ERROR(pinned->Pin(std::move(segment), bytes));
  return pinned;
}

absl::StatusOr<std::unique_ptr<PinnedSegment>> PinnedSegment::Open(
    const CudaDriver& driver, const SegmentAddress& address, size_t bytes) {
  std::unique_ptr<PinnedSegment> pinned(new PinnedSegment(driver));
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> segment,
                          SharedSegment::Open(address, bytes));
  TFRING_RETURN_IF_ERROR(pinned->Pin(std::move(segment), bytes));
  return pinned;
}

absl::Status PinnedSegment::Pin(std::unique_ptr<SharedSegment> segment,
                                size_t bytes) {
  segment_ = std::move(segment);
  TFRING_RETURN_IF_ERROR(driver_.cuMemHostRegister(
      data(), bytes, kCudaHostPortable | kCudaHostDeviceMap));
  const absl::Status status =
      driver_.cuMemHostGetDevicePointer(&device_, data(), /*flags=*/0);
  if (!status.ok()) driver_.cuMemHostUnregister.Result(data());
  return status;
}

PinnedSegment::~PinnedSegment() {
  if (device_ != 0) driver_.cuMemHostUnregister.Result(data());
}

}  // namespace tfring
