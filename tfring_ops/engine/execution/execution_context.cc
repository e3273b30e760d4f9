#include "tfring_ops/engine/execution/execution_context.h"

#include <algorithm>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// Size of the fusion buffer for scaled or cast tensors if the threshold forbids
// fusion.
constexpr int64_t kScaledBytes = 16 << 20;

// Returns the bytes of a segment, the same on every rank.
int64_t SegmentBytes(const Options& options, const Transport& transport,
                     Memory memory) {
  if (memory == Memory::kDevice) return options.device_segment_bytes;
  return Layout::Of(transport).nodes > 1 ? options.network_segment_bytes
                                         : options.segment_bytes;
}

}  // namespace

ExecutionContext::ExecutionContext(const Options& options, Transport& transport,
                                   const Kernels& kernels,
                                   CostSource cost_source, Memory memory,
                                   StreamCollectives* collectives,
                                   const Clock& clock)
    : fusion_threshold_bytes_(options.fusion_threshold_bytes),
      scratch_(kernels),
      fusion_buffer_(kernels),
      ring_{transport, kernels, SegmentBytes(options, transport, memory),
            scratch_},
      allreduce_(ring_, options, cost_source, clock),
      collectives_(collectives) {}

bool ExecutionContext::Delegates(const CollectiveRequest& request) const {
  return collectives_ != nullptr &&
         collectives_->Reduces(WireType(request), request.op);
}

int64_t ExecutionContext::MostFusedBytes() const {
  return std::max(fusion_threshold_bytes_, kScaledBytes);
}

absl::StatusOr<std::byte*> ExecutionContext::FusionBuffer(int64_t bytes) {
  if (bytes <= fusion_buffer_.bytes()) return fusion_buffer_.data();
  // Launched work may use the buffer, and freeing it would wait for that work
  // without a deadline.
  if (collectives_ != nullptr) TFRING_RETURN_IF_ERROR(collectives_->Finish());
  Transport& transport = ring_.transport;
  TFRING_RETURN_IF_ERROR(transport.Export({}));
  bytes = (bytes + kExportedBytes - 1) / kExportedBytes * kExportedBytes;
  TFRING_ASSIGN_OR_RETURN(std::byte* const data, fusion_buffer_.AtLeast(bytes));
  TFRING_RETURN_IF_ERROR(transport.Export(Bytes(data, bytes)));
  return data;
}

ExecutionContext::~ExecutionContext() {
  ring_.transport.Export({}).IgnoreError();
}

}  // namespace tfring
