// Memory of the host that processes of one node share and that their GPUs use
// as they do pinned memory.
//
// Each process pins the memory for itself, and the memory stays until the last
// process has released it, in whatever order.  Calls are made in the device's
// context.
#ifndef TFRING_OPS_TRANSPORT_CUDA_PINNED_SEGMENT_H_
#define TFRING_OPS_TRANSPORT_CUDA_PINNED_SEGMENT_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/transport/shared_memory/shared_segment.h"

namespace tfring {

class PinnedSegment {
 public:
  // Creates a segment that is filled with zeros.
  static absl::StatusOr<std::unique_ptr<PinnedSegment>> Create(
      const CudaDriver& driver, size_t bytes);
  // REQUIRES: the process that created the segment has not destroyed it.
  static absl::StatusOr<std::unique_ptr<PinnedSegment>> Open(
      const CudaDriver& driver, const SegmentAddress& address, size_t bytes);
  // REQUIRES: this process's GPU does not use it any more.
  ~PinnedSegment();
  PinnedSegment(const PinnedSegment&) = delete;
  PinnedSegment& operator=(const PinnedSegment&) = delete;

  std::byte* data() const { return segment_->data(); }
  // The address of data() for the GPU.
  CUdeviceptr device() const { return device_; }
  // REQUIRES: this process has created it.
  SegmentAddress address() const { return segment_->address(); }

 private:
  explicit PinnedSegment(const CudaDriver& driver) : driver_(driver) {}
  absl::Status Pin(std::unique_ptr<SharedSegment> segment, size_t bytes);

  const CudaDriver& driver_;
  std::unique_ptr<SharedSegment> segment_;
  CUdeviceptr device_ = 0;  // unless it is pinned
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_PINNED_SEGMENT_H_
