// The link between this rank's GPU and one other rank, of any kind.
//
// Not thread-safe.  Calls are made in the device's context.
#ifndef TFRING_OPS_TRANSPORT_CUDA_CUDA_LINK_H_
#define TFRING_OPS_TRANSPORT_CUDA_CUDA_LINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/transport/cuda/stream_numbers.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The context that all links share.
struct CudaLinkContext {
  const CudaDriver& driver;
  CUcontext context;
  CUstream stream;  // where buffers are written and read
  // Further streams, so that copies and kernels overlap.
  CUstream outgoing, incoming;
  // The numbers of `stream` and of `outgoing`; see FlushNumbers.
  std::unique_ptr<StreamNumbers> numbers, outgoing_numbers;
  Transport& host;
  // Messages are cut into parts of this size, which is the size of a slot and a
  // multiple of kPartAlignment.
  size_t part_bytes;
  // The size of slots in pinned memory of the host, which may be scarce.
  size_t host_part_bytes;
  double timeout_seconds;  // of a wait; 0 is never
};

// Call it before every return from the transport, and before other work is
// enqueued on these streams.  The outgoing stream comes first: if two streams
// share a queue of the GPU, a wait ahead of its own signal would block both.
inline absl::Status FlushNumbers(const CudaLinkContext& context) {
  TFRING_RETURN_IF_ERROR(context.outgoing_numbers->Flush());
  return context.numbers->Flush();
}

// Waits until `stream` has completed all work enqueued so far, unless the
// host's transport fails meanwhile: the work may wait for a rank that is lost.
absl::Status WaitForStream(const CudaLinkContext& context, CUstream stream);
// Waits in the same way until `mark` is reached.
class CudaMark;
absl::Status WaitForMark(const CudaLinkContext& context, const CudaMark& mark);
// Waits in the same way for all streams, after which the driver's waits end.
// See Note [Waits of the driver] in kernels/cuda.h.
absl::Status WaitForStreams(const CudaLinkContext& context);

// An event with its owner.
class CudaMark {
 public:
  explicit CudaMark(const CudaLinkContext& context) : context_(context) {}
  ~CudaMark() {
    if (event_ != nullptr) context_.driver.cuEventDestroy.Result(event_);
  }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  // Records the work enqueued on `stream` so far.
  absl::Status Record(CUstream stream) {
    if (event_ == nullptr) {
      TFRING_RETURN_IF_ERROR(
          context_.driver.cuEventCreate(&event_, kCudaEventDisableTiming));
    }
    return context_.driver.cuEventRecord(event_, stream);
  }
  // REQUIRES: Record has been called.
  absl::Status Await(CUstream stream) const {
    return context_.driver.cuStreamWaitEvent(stream, event_, 0);
  }
  absl::StatusOr<bool> Done() const {
    const int result = context_.driver.cuEventQuery.Result(event_);
    if (result == kCudaErrorNotReady) return false;
    TFRING_RETURN_IF_ERROR(context_.driver.Check(result, "cuEventQuery"));
    return true;
  }

 private:
  const CudaLinkContext& context_;
  CUevent event_ = nullptr;
};

// A message, cut into parts.  An empty message has one part.
struct CudaMessage {
  int peer = 0;  // CudaTransport finds the link by it
  std::byte* data = nullptr;
  size_t bytes = 0;
  size_t started = 0;   // bytes, in whole parts
  size_t finished = 0;  // parts
  bool complete = false;
  // Of a complete send: its last part, counted from 1, if the stream has to
  // wait before work that writes to the buffer (CudaLink::AwaitSent).
  uint64_t last_part = 0;
  bool is_read_in_place = false;

  size_t Parts(size_t part_bytes) const {
    return std::max<size_t>(1, (bytes + part_bytes - 1) / part_bytes);
  }
  size_t NextPart(size_t part_bytes) const {
    return std::min(part_bytes, bytes - started);
  }
};

class CudaLink {
 public:
  virtual ~CudaLink() = default;

  // Adds a message to those in flight, in order.  REQUIRES: `message` stays
  // until it is complete or the transport has been aborted.
  virtual void Send(CudaMessage& message) = 0;
  virtual void Receive(CudaMessage& message) = 0;

  // Makes progress on all messages, and marks the complete ones.
  virtual absl::Status Move() = 0;

  // These are as in transport.h, except that an empty part means that none has
  // arrived.
  virtual bool CanPeek() const { return false; }
  virtual absl::StatusOr<ConstBytes> Peek(size_t /*message_bytes*/) {
    return absl::UnimplementedError("this link cannot peek");
  }
  virtual absl::Status Release() { return absl::OkStatus(); }

  // Lets work enqueued on the stream from now on overwrite the data of
  // `message`, which is complete and has a last part.
  virtual absl::Status AwaitSent(const CudaMessage& /*message*/) {
    return absl::OkStatus();
  }

  // Open and close the memory that the peer has also exported, to read in place
  // the data that it sends from there.
  virtual absl::Status OpenExported(const CUipcMemHandle& /*memory*/) {
    return absl::OkStatus();
  }
  virtual void CloseExported() {}

  // Tells the peer of the work enqueued so far.  Call it after FlushNumbers.
  virtual void SendTokens() {}

  // Waits until the tokens that the link has sent to the peer have left.
  virtual absl::Status LetTokensGo() { return absl::OkStatus(); }

  // Called after an abort: ends the streams' waits for the peer, which may be
  // lost, and leaves their data undefined.  A peer that still runs may undo
  // that, so it is called again until the streams are idle.
  virtual void StopWaiting() {}

  // Called before the end, unless the transport has been aborted: waits until
  // the peer no longer uses this rank's memory, and closes the peer's memory.
  // All ranks synchronize between this call and the destructor.
  virtual absl::Status Quiesce() { return absl::OkStatus(); }
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_CUDA_LINK_H_
