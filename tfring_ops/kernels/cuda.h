// An NVIDIA GPU, through its driver: neither a build nor a machine without a
// GPU needs CUDA.
//
// The driver's types stay below: a stream is a CUstream as `void*`, as
// TensorFlow and XLA hand it out.
#ifndef TFRING_OPS_KERNELS_CUDA_H_
#define TFRING_OPS_KERNELS_CUDA_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/kernels/kernels.h"

// The driver's own types.
struct CUctx_st;
struct CUevent_st;
struct CUstream_st;

namespace tfring {

class CudaDriver;
class CudaKernels;

// Returns the version of CUDA that the driver supports, such as "12.4".
// Unavailable, with the reason, if there is no driver.
absl::StatusOr<std::string> CudaDriverVersion();

// Returns the number of GPUs.  Unavailable, with the reason, if there is no
// driver.
absl::StatusOr<int> CudaDeviceCount();

// Returns the GPU that this process has used, by whatever library, or the first
// one if it has used none.  Unavailable, with the reason, if there is no
// driver.
absl::StatusOr<int> CudaDeviceInUse();

// Note [Waits of the driver]
//
// The driver waits for the GPU in more calls than its documentation says.
// Freeing or unpinning memory, closing another process's memory and unloading
// kernels wait for all streams of the context; allocating or pinning memory
// may.  A copy from or to memory that is not pinned may wait for the earlier
// work on its stream.  None of these waits has a deadline, and a stream that
// waits for a lost rank continues only when this rank's host ends that wait.
//
// So a thread whose streams may wait for other ranks makes none of these calls
// before the streams are idle; it waits for that with a deadline, and checks
// for lost ranks meanwhile (CudaDevice::WaitBy).  Streams of other threads,
// such as another process set's or the framework's, become idle without this
// thread: their owners follow the same rule, and so are not in such a call
// while the streams wait.
//
// Destroying a stream or an event does not wait.

// A GPU and one stream on it.  Thread-safe, except kernels(), WaitBy and
// Abandon, which only the thread that owns the stream may call.
class CudaDevice {
 public:
  // Unavailable, with the reason, where there is no driver or no such GPU.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> ForOrdinal(int ordinal);

  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  int64_t memory_bytes() const { return memory_bytes_; }
  // Identifies this GPU in all processes that see it.
  const std::array<char, 16>& uuid() const { return uuid_; }
  CUctx_st* context() const { return context_; }
  void* stream() const { return stream_; }

  // Kernels that enqueue work on the stream and return before the GPU has
  // completed it.  Their Synchronize does not wait; it returns the first error
  // of a launch.
  const Kernels& kernels() const;

  // Copy between host memory and the GPU's, in the order of the stream.  They
  // return when the copy is complete, and have no deadline: the stream must not
  // wait for another rank.
  absl::Status Upload(void* device, const void* host, int64_t bytes) const;
  absl::Status Download(void* host, const void* device, int64_t bytes) const;

  // Returns OK if some of its memory can be exported to other processes.
  absl::Status TryExport() const;

  // Returns when the stream is idle, and has no deadline.  So the stream must
  // wait for no rank, or its transport must have been aborted without
  // abandoning anything.
  absl::Status Finish() const;

  // From now on the stream may wait for other ranks.  `wait` returns when the
  // work of this stream and of the transport's streams has ended.  If it cannot
  // end, `wait` returns an error, after which the streams wait for no rank, or
  // Abandon has been called.  Null: the stream no longer waits for ranks.  See
  // Note [Waits of the driver].
  void WaitBy(std::function<absl::Status()> wait) const;
  // Says that the stream may never become idle.  From now on nothing is freed,
  // not even with the device.
  void Abandon() const;

 private:
  CudaDevice(const CudaDriver& driver, int ordinal);
  absl::Status Open();

  const CudaDriver& driver_;
  const int ordinal_;
  int device_ = 0;  // the CUdevice
  std::string name_;
  int64_t memory_bytes_ = 0;
  std::array<char, 16> uuid_{};
  CUctx_st* context_ = nullptr;
  CUstream_st* stream_ = nullptr;
  std::unique_ptr<CudaKernels> kernels_;
};

// A point in the order of a stream, for which other streams and the host can
// wait.  Not thread-safe: a thread that calls Await or Wait must know that
// Record has returned on another.
class CudaEvent {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(
      const CudaDevice& device);
  // Creates an event on GPU `ordinal`.  The GPU's primary context is never
  // released, and no kernels are loaded.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> CreateOn(int ordinal);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // Sets the event to all work that has been enqueued on `stream` so far.
  absl::Status Record(void* stream);
  // Makes work that is enqueued on `stream` from now on wait for the recorded
  // work.
  absl::Status Await(void* stream) const;
  // Returns true if the recorded work is complete.
  absl::StatusOr<bool> Done() const;
  // Sleeps until the recorded work is complete.  It may not be called on a
  // thread whose streams may wait for other ranks; see Note [Waits of the
  // driver].
  absl::Status Wait() const;

 private:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> CreateIn(CUctx_st* context);
  CudaEvent(CUctx_st* context, CUevent_st* event)
      : context_(context), event_(event) {}

  CUctx_st* const context_;
  CUevent_st* const event_;
};

// A stream for copies between the GPU and pinned memory of the host, at the
// highest priority.  The GPU's primary context is never released, and no
// kernels are loaded.  Thread-safe.
class CudaCopyStream {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCopyStream>> CreateOn(int ordinal);
  // The destructor does not cancel enqueued work.
  ~CudaCopyStream();
  CudaCopyStream(const CudaCopyStream&) = delete;
  CudaCopyStream& operator=(const CudaCopyStream&) = delete;

  void* stream() const { return stream_; }

  // Enqueue a copy, and return before the GPU has done it.
  absl::Status Upload(void* device, const void* pinned, int64_t bytes) const;
  absl::Status Download(void* pinned, const void* device, int64_t bytes) const;

 private:
  CudaCopyStream(CUctx_st* context, CUstream_st* stream)
      : context_(context), stream_(stream) {}

  CUctx_st* const context_;
  CUstream_st* const stream_;
};

// Allocates pinned memory of the host, for copies to and from any GPU.
// `ordinal` is any GPU in use; its primary context is never released.
absl::StatusOr<void*> AllocatePinned(int ordinal, int64_t bytes);
// Waits until GPUs have done all enqueued work.  It may not be called on a
// thread whose streams may wait for other ranks; see Note [Waits of the
// driver].
void FreePinned(int ordinal, void* memory);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CUDA_H_
