// The kind of link between each two GPUs, which the ranks negotiate at the
// start.
#ifndef TFRING_OPS_TRANSPORT_CUDA_CUDA_LINKS_H_
#define TFRING_OPS_TRANSPORT_CUDA_CUDA_LINKS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/transport/cuda/cuda_ipc.h"
#include "tfring_ops/transport/cuda/cuda_link.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Note [How far the host runs ahead]
//
// A queue of the GPU's holds about a thousand calls, and a call that finds it
// full waits without a deadline: forever, if the stream waits for a lost rank.
// The host takes less time for a segment than the GPU does, and so would fill
// the queue within one large tensor.  Therefore the host stays at most some
// hundreds of calls ahead of a stream that may wait for other ranks.  It waits
// for the stream as it does for a rank: it makes progress meanwhile, and
// notices a lost rank.

class CudaLinks {
 public:
  // Collective over the ranks of `host`.
  static absl::StatusOr<std::unique_ptr<CudaLinks>> Negotiate(
      const CudaDevice& device, Transport& host, const Options& options);
  // Calls are made in the device's context from here on.
  ~CudaLinks();

  const CudaLinkContext& context() const { return context_; }
  CudaLink& link(int peer) { return *links_[peer]; }
  const CudaLink& link(int peer) const { return *links_[peer]; }

  // Called after an abort: ends the streams' waits for peers, and returns true
  // when the GPU has completed all enqueued work.  Abandons the device and
  // returns false if that takes too long.
  bool StopWaiting();

  // Calls FlushNumbers, and then sends tokens; to be called before every return
  // from the transport.  It may wait for the GPU: see Note [How far the host
  // runs ahead].
  absl::Status Flush();

  // See Transport::Export.
  absl::Status Export(Bytes memory);

  // Synchronizes all ranks, so that no memory is freed while it is read.
  absl::Status Quiesce();

 private:
  // Two marks of a stream, kCallsBetweenMarks calls apart.
  struct Pace {
    Pace(const CudaLinkContext& context, CUstream stream,
         const StreamNumbers& numbers)
        : stream(stream),
          numbers(numbers),
          earlier(std::make_unique<CudaMark>(context)),
          later(std::make_unique<CudaMark>(context)) {}

    const CUstream stream;
    const StreamNumbers& numbers;
    std::unique_ptr<CudaMark> earlier, later;
    int64_t marked_calls = 0;
    int marks = 0;
  };

  CudaLinks(const CudaDriver& driver, const CudaDevice& device, Transport& host,
            const Options& options);
  absl::Status OpenStreams();
  // Waits while the host is too far ahead.
  absl::Status Keep(Pace& pace) const;
  // Returns true if the GPU has completed all work enqueued before the first
  // call.
  absl::StatusOr<bool> Idle();
  // Opens a link to every peer of `peers`, or to none.
  absl::Status TryIpc(const std::vector<int>& peers, const Kernels& kernels);
  absl::Status OpenIpcLinks(const std::vector<int>& peers,
                            const std::vector<IpcOffer>& offers);
  absl::Status OpenExported(const std::vector<CUipcMemHandle>& handles);
  // Ends the export of this rank's memory, when no peer reads it any more.
  absl::Status ExportNone();

  CudaLinkContext context_;
  const CudaDevice& device_;
  std::unique_ptr<IpcMemory> memory_;  // on all ranks or on none
  bool can_export_ = true;             // more of it, agreed by all ranks
  std::vector<std::unique_ptr<CudaLink>> links_;  // by rank
  std::vector<std::unique_ptr<CudaMark>> marks_;  // of the streams, for Idle
  std::vector<Pace> paces_;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_CUDA_LINKS_H_
