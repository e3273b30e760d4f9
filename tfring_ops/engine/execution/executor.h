// Runs what the ranks have agreed on.
//
// Not thread-safe.  After an error the transport must be aborted before the
// entries' memory is touched.
#ifndef TFRING_OPS_ENGINE_EXECUTION_EXECUTOR_H_
#define TFRING_OPS_ENGINE_EXECUTION_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/algorithms/stream_collectives.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Where an executor's tensors are.
enum class Memory { kHost, kDevice };

class Executor {
 public:
  // `collectives`, if there are any, do what they can; the ring does the rest.
  // REQUIRES: what it is given outlives the executor.
  Executor(const Options& options, Transport& transport, const Kernels& kernels,
           CostSource cost_source, Memory memory = Memory::kHost,
           StreamCollectives* collectives = nullptr);
  // Collective, unless the transport has been aborted: peers may have read this
  // rank's fusion buffer.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // The basis for the choice of an algorithm; see AdaptiveAllreduce.
  absl::StatusOr<Costs> MeasuredCosts() { return allreduce_.Measured(); }
  void UseCosts(const Costs& costs) { allreduce_.Use(costs); }

  // REQUIRES: the entries' requests are Fusible.
  absl::Status Allreduce(absl::Span<TensorEntry* const> entries);

  // `first_dims[i][r]` is the first dimension of tensor i on rank r.
  absl::Status Allgather(TensorEntry& entry,
                         absl::Span<const std::vector<int64_t>> first_dims);

  // Each tensor by itself.
  absl::Status Adasum(TensorEntry& entry);

  // From `root`, a rank of the process set.
  absl::Status Broadcast(TensorEntry& entry, int root);

  absl::Status ReduceScatter(TensorEntry& entry);

  // `splits[r]` are those of rank r.
  absl::Status Alltoall(TensorEntry& entry,
                        absl::Span<const std::vector<int64_t>> splits);

 private:
  // The tensors lie as they are.
  absl::Status AllreduceInPlace(const CollectiveRequest& request,
                                absl::Span<const RingPiece> pieces);
  // Through the fusion buffer, and scaled and cast on the way.
  absl::Status AllreduceStaged(const CollectiveRequest& request,
                               absl::Span<const RingPiece> pieces,
                               absl::Span<const double> factors);

  absl::Status ReduceScatterOwn(const CollectiveRequest& request,
                                const RingBuffers& buffers,
                                absl::Span<const Range> chunks);
  absl::Status ScaledReduceScatter(const CollectiveRequest& request,
                                   const TensorEntry::Buffer& buffer,
                                   absl::Span<const Range> chunks);

  // Returns true if collectives_ do this in place of the ring.
  bool Delegates(const CollectiveRequest& request) const;

  // However large what goes through the fusion buffer may be.
  int64_t MostFusedBytes() const;
  // At least `bytes` of fusion_buffer_, the same on all ranks.  Collective.
  absl::StatusOr<std::byte*> FusionBuffer(int64_t bytes);

  const int64_t fusion_threshold_bytes_;
  // Kept from call to call: fresh memory costs a page fault every 4 KiB.
  Workspace scratch_;
  Workspace fusion_buffer_;
  const RingContext ring_;
  AdaptiveAllreduce allreduce_;
  StreamCollectives* const collectives_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_EXECUTOR_H_
