// An NVIDIA GPU, through its driver: nothing of CUDA is needed to build, nor to
// run where there is no GPU.
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

// The CUDA that the driver serves: "12.4".  Unavailable, with the reason, where
// there is no driver.
absl::StatusOr<std::string> CudaDriverVersion();

// How many there are.  Unavailable, with the reason, where there is no driver.
absl::StatusOr<int> CudaDeviceCount();

// The GPU that this process has used, by whatever library, or else its first
// one.  Unavailable, with the reason, where there is no driver.
absl::StatusOr<int> CudaDeviceInUse();

// Note [Waits of the driver]
//
// The driver waits for the GPU in more calls than its documentation says.  To
// free or unpin memory, to close another process's and to unload kernels waits
// for all streams of the context, and to allocate or pin memory may; a copy
// from or to memory that is not pinned may wait for what its stream has to do
// before it.  None of these waits has a deadline, and a stream that waits for a
// lost rank continues only when this rank's host ends that wait.
//
// So if a thread's streams may wait for other ranks, it makes none of these
// calls before the streams are idle; it waits for that with a deadline and an
// eye on the ranks (CudaDevice::WaitBy).  Streams of other threads, such as
// another process set's or the framework's, become idle without this thread:
// their owners do the same, and so are not in such a call while the streams
// wait.
//
// To destroy a stream or an event waits for nothing.

// A GPU and one stream on it.  Thread-safe but for kernels(), WaitBy and
// Abandon, which belong to the thread that owns the stream.
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
  // The same in all processes that see this GPU.
  const std::array<char, 16>& uuid() const { return uuid_; }
  CUctx_st* context() const { return context_; }
  void* stream() const { return stream_; }

  // They work on the stream and return before the GPU has done it.  Their
  // Synchronize waits for nothing; it returns the first error of a launch.
  const Kernels& kernels() const;

  // Between host memory and the GPU's, in the order of the stream.  Return when
  // it is done, and have no deadline: for a stream that waits for no rank.
  absl::Status Upload(void* device, const void* host, int64_t bytes) const;
  absl::Status Download(void* host, const void* device, int64_t bytes) const;

  // Returns OK if some of its memory can be exported to other processes.
  absl::Status TryExport() const;

  // Returns when the stream has done everything, without a deadline: for one
  // that waits for no rank, or whose transport has been aborted and has
  // abandoned nothing.
  absl::Status Finish() const;

  // From now on the stream may wait for other ranks, and `wait` returns when
  // its work and the work of the streams beside it has ended, or an error if it
  // cannot: then they do not wait for ranks any more, or Abandon has been
  // called.  Null: it no longer does.  See Note [Waits of the driver].
  void WaitBy(std::function<absl::Status()> wait) const;
  // The stream may never become idle: nothing is freed from now on, not even
  // with the device.
  void Abandon() const;

 private:
  CudaDevice(const CudaDriver& driver, int ordinal);
  absl::Status Open();

  const CudaDriver& driver_;
  const int ordinal_;
  int device_ = 0;  // its CUdevice
  std::string name_;
  int64_t memory_bytes_ = 0;
  std::array<char, 16> uuid_{};
  CUctx_st* context_ = nullptr;
  CUstream_st* stream_ = nullptr;
  std::unique_ptr<CudaKernels> kernels_;
};

// A moment in the order of a stream, for other streams and the host to wait
// for.  One thread at a time; with Record on one thread and Await or Wait on
// another, something else says that Record has returned.
class CudaEvent {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(
      const CudaDevice& device);
  // On GPU `ordinal`; its primary context is kept for ever, and no kernels are
  // loaded for it.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> CreateOn(int ordinal);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // The moment at which `stream` has completed all work enqueued so far.
  absl::Status Record(void* stream);
  // Work enqueued on `stream` from now on waits for that moment.
  absl::Status Await(void* stream) const;
  // Returns true if that moment has come.
  absl::StatusOr<bool> Done() const;
  // Returns when that moment has come, and sleeps until then: not for a thread
  // whose streams may wait for other ranks; see Note [Waits of the driver].
  absl::Status Wait() const;

 private:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> CreateIn(CUctx_st* context);
  CudaEvent(CUctx_st* context, CUevent_st* event)
      : context_(context), event_(event) {}

  CUctx_st* const context_;
  CUevent_st* const event_;
};

// A stream for copies between the GPU and pinned memory of the host, at the
// highest priority.  Its GPU's primary context is kept for ever, and no kernels
// are loaded for it.  Thread-safe.
class CudaCopyStream {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCopyStream>> CreateOn(int ordinal);
  // Enqueued work is still done.
  ~CudaCopyStream();
  CudaCopyStream(const CudaCopyStream&) = delete;
  CudaCopyStream& operator=(const CudaCopyStream&) = delete;

  void* stream() const { return stream_; }

  // Return before the GPU has done it.
  absl::Status Upload(void* device, const void* pinned, int64_t bytes) const;
  absl::Status Download(void* pinned, const void* device, int64_t bytes) const;

 private:
  CudaCopyStream(CUctx_st* context, CUstream_st* stream)
      : context_(context), stream_(stream) {}

  CUctx_st* const context_;
  CUstream_st* const stream_;
};

// Pinned memory of the host, for copies to and from any GPU.  GPU `ordinal` may
// be any one that is in use; its primary context is kept for ever.
absl::StatusOr<void*> AllocatePinned(int ordinal, int64_t bytes);
// Waits until GPUs have done all enqueued work: not for a thread with streams
// that may wait for other ranks; see Note [Waits of the driver].
void FreePinned(int ordinal, void* memory);

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CUDA_H_
