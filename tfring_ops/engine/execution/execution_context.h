// The resources of a lane's collectives: the ring, the fusion buffer and
// scratch memory, and the library that does collectives in the ring's place.
//
// Not thread-safe.
#ifndef TFRING_OPS_ENGINE_EXECUTION_EXECUTION_CONTEXT_H_
#define TFRING_OPS_ENGINE_EXECUTION_EXECUTION_CONTEXT_H_

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

// The place of a lane's tensors.
enum class Memory { kHost, kDevice };

class ExecutionContext {
 public:
  // `collectives`, if there are any, do what they can; the ring does the rest.
  // REQUIRES: what it is given outlives the context.
  ExecutionContext(const Options& options, Transport& transport,
                   const Kernels& kernels, CostSource cost_source,
                   Memory memory = Memory::kHost,
                   StreamCollectives* collectives = nullptr);
  // Collective, unless the transport has been aborted: peers may have read this
  // rank's fusion buffer.
  ~ExecutionContext();
  ExecutionContext(const ExecutionContext&) = delete;
  ExecutionContext& operator=(const ExecutionContext&) = delete;

  // Never frees memory that messages have used: see Transport::HasAbandoned.
  void KeepMemory() {
    scratch_.Keep();
    fusion_buffer_.Keep();
  }

  // The basis for the choice of an algorithm; see AdaptiveAllreduce.
  absl::StatusOr<Costs> MeasuredCosts() { return allreduce_.Measured(); }
  void UseCosts(const Costs& costs) { allreduce_.Use(costs); }

  const RingContext& ring() const { return ring_; }
  AdaptiveAllreduce& allreduce() { return allreduce_; }
  // Null: there are none, and the ring does it all.
  StreamCollectives* stream_collectives() const { return collectives_; }
  // Returns true if those reduce `request` in place of the ring.
  bool Delegates(const CollectiveRequest& request) const;

  int64_t fusion_threshold_bytes() const { return fusion_threshold_bytes_; }
  // However large the packed tensors are.
  int64_t MostFusedBytes() const;
  // At least `bytes` of fusion buffer, the same on all ranks.  Collective.
  absl::StatusOr<std::byte*> FusionBuffer(int64_t bytes);
  Workspace& scratch() { return scratch_; }

 private:
  const int64_t fusion_threshold_bytes_;
  // Kept from call to call: fresh memory costs a page fault every 4 KiB.
  Workspace scratch_;
  Workspace fusion_buffer_;
  const RingContext ring_;
  AdaptiveAllreduce allreduce_;
  StreamCollectives* const collectives_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_EXECUTION_CONTEXT_H_
