// Numbers that order the streams of two processes of a node.
//
// They are in memory of the host that both processes share and both GPUs use.
// A stream that waits for a number polls it there.  If the peer is lost, the
// host writes the number in its place, whereas a wait for an event of a killed
// process would never end.
//
// Calls are made in the device's context.
#ifndef TFRING_OPS_TRANSPORT_CUDA_IPC_FLAGS_H_
#define TFRING_OPS_TRANSPORT_CUDA_IPC_FLAGS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/transport/cuda/pinned_segment.h"
#include "tfring_ops/transport/cuda/stream_numbers.h"

namespace tfring {

// Parts in flight from one rank to another.
inline constexpr int kIpcSlots = 4;

// A number that grows, and wraps round.
class IpcFlag {
 public:
  // Makes the stream set the number when it has completed all work enqueued so
  // far.
  void Set(StreamNumbers& stream, uint64_t number) const {
    stream.Set(address_, static_cast<uint32_t>(number));
  }
  // Makes work enqueued on the stream from now on wait until the flag is at
  // least `number`.
  void Await(StreamNumbers& stream, uint64_t number) const {
    stream.Await(address_, static_cast<uint32_t>(number));
  }
  // Ends all waits for numbers up to `number`, and for all numbers that may be
  // in flight after it.
  void Release(uint32_t number) const { *value_ = number + (1U << 30); }

 private:
  friend class IpcFlags;

  std::atomic<uint32_t>* value_ = nullptr;
  CUdeviceptr address_ = 0;
};

// A rank awaits these numbers, and one peer sets them: parts, counted from 1.
struct IpcPeerFlags {
  std::array<IpcFlag, kIpcSlots> filled;  // the last part in each slot
  IpcFlag emptied;                        // the last part that has been read
  // The number of messages that are ready to be copied.  The rank that awaits
  // it also sets it: one of its streams for another.
  IpcFlag ready;
};

// The flags that one rank awaits and its peers set.
class IpcFlags {
 public:
  // A message by which another process can open the flags.
  struct Offer {
    SegmentAddress segment;
    int32_t peers = 0;
    int32_t index = 0;  // the index of the process that gets the offer
  };

  // Creates this rank's flags, for `peers` peers.
  static absl::StatusOr<std::unique_ptr<IpcFlags>> Create(
      const CudaDriver& driver, int peers);
  static absl::StatusOr<std::unique_ptr<IpcFlags>> Open(
      const CudaDriver& driver, const Offer& offer);
  IpcFlags(const IpcFlags&) = delete;
  IpcFlags& operator=(const IpcFlags&) = delete;

  // REQUIRES: this rank has created the flags.
  Offer offer(int index) const { return {segment_->address(), peers_, index}; }
  IpcPeerFlags of_peer(int index) const;

 private:
  struct Block;

  IpcFlags(std::unique_ptr<PinnedSegment> segment, int peers)
      : segment_(std::move(segment)), peers_(peers) {}

  const std::unique_ptr<PinnedSegment> segment_;
  const int peers_;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_IPC_FLAGS_H_
