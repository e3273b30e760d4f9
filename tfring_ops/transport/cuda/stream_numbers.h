// Numbers in memory that a stream sets and waits for, several in one call of
// the driver's.
#ifndef TFRING_OPS_TRANSPORT_CUDA_STREAM_NUMBERS_H_
#define TFRING_OPS_TRANSPORT_CUDA_STREAM_NUMBERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/kernels/cuda_driver.h"

namespace tfring {

// Keeps the calls until Flush, which is called before anything else is enqueued
// on the stream, and before the transport returns: the caller may wait for a
// rank that waits for one of the numbers.
//
// All calls except Set and Await are made in the device's context.
class StreamNumbers {
 public:
  StreamNumbers(const CudaDriver& driver, CUstream stream)
      : driver_(driver), stream_(stream) {}
  StreamNumbers(const StreamNumbers&) = delete;
  StreamNumbers& operator=(const StreamNumbers&) = delete;

  // Makes the stream set it to `number` when it has completed all work enqueued
  // so far.
  void Set(CUdeviceptr address, uint32_t number) {
    kept_.push_back({kCudaWriteValue32, address, number, /*flags=*/0});
  }
  // Makes work enqueued on the stream from now on wait until it is at least
  // `number`; numbers wrap round.
  void Await(CUdeviceptr address, uint32_t number) {
    kept_.push_back({kCudaWaitValue32, address, number, kCudaWaitValueGeq});
  }

  absl::Status Flush() {
    if (kept_.empty()) return absl::OkStatus();
    ++calls_;
    std::vector<CudaStreamOperation> kept;
    kept.swap(kept_);
    const absl::Status status = driver_.cuStreamBatchMemOp(
        stream_, static_cast<unsigned>(kept.size()), kept.data(), /*flags=*/0);
    kept.clear();
    kept_.swap(kept);  // its memory is used again
    return status;
  }
  // The number of calls of the driver's so far.
  int64_t calls() const { return calls_; }

 private:
  const CudaDriver& driver_;
  const CUstream stream_;
  std::vector<CudaStreamOperation> kept_;
  int64_t calls_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_STREAM_NUMBERS_H_
