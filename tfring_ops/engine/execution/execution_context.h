// What the collectives of one lane share: the ring, the fusion buffer, scratch
// memory, and a library that may take the ring's place.
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
#include "tfring_ops/base/clock.h"
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
  // The ring does what `collectives` cannot do, or everything if that is null.
  // REQUIRES: all arguments outlive the context.
  ExecutionContext(const Options& options, Transport& transport,
                   const Kernels& kernels, CostSource cost_source,
                   Memory memory = Memory::kHost,
                   StreamCollectives* collectives = nullptr,
                   const Clock& clock = SteadyClock());
  // Collective unless the transport was aborted, because peers may still read
  // this rank's fusion buffer.
  ~ExecutionContext();
  ExecutionContext(const ExecutionContext&) = delete;
  ExecutionContext& operator=(const ExecutionContext&) = delete;

  // Never frees memory that messages have used: see Transport::HasAbandoned.
  void KeepMemory() {
    scratch_.Keep();
    fusion_buffer_.Keep();
  }

  const RingContext& ring() const { return ring_; }
  AdaptiveAllreduce& allreduce() { return allreduce_; }
  // Null if the ring does everything.
  StreamCollectives* stream_collectives() const { return collectives_; }
  // Returns true if the stream collectives reduce `request`.
  bool Delegates(const CollectiveRequest& request) const;

  int64_t fusion_threshold_bytes() const { return fusion_threshold_bytes_; }
  // The largest fusion buffer that any bucket needs.
  int64_t MostFusedBytes() const;
  // Returns a fusion buffer of at least `bytes`, which is the same on all
  // ranks.  Collective.
  absl::StatusOr<std::byte*> FusionBuffer(int64_t bytes);
  Workspace& scratch() { return scratch_; }

 private:
  const int64_t fusion_threshold_bytes_;
  // The memory is kept from call to call: fresh memory costs a page fault every
  // 4 KiB.
  Workspace scratch_;
  Workspace fusion_buffer_;
  const RingContext ring_;
  AdaptiveAllreduce allreduce_;
  StreamCollectives* const collectives_;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_EXECUTION_CONTEXT_H_
