#include "tfring_ops/ring/reduce_scatter.h"

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/ring/allreduce.h"

namespace tfring {

absl::Status RingReduceScatter(const RingContext& context, RingBuffers buffers,
                               absl::Span<const Range> chunks) {
  const int n = context.transport.size();
  if (n == 1) return RingAllreduce(context, buffers);
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;

  Primitives prims(context, buffers);
  // The chunk that was this rank's `j` steps ago.
  const auto chunk = [&](int j) { return chunks[context.order.Before(j)]; };

  // Chunk r walks once round the ring and is whole at rank r.
  TFRING_RETURN_IF_ERROR(prims.Send(chunk(1)));
  for (int j = 2; j < n; ++j) {
    TFRING_RETURN_IF_ERROR(prims.RecvReduceSend(chunk(j)));
  }
  TFRING_RETURN_IF_ERROR(prims.RecvReduceCopy(chunk(0)));
  return prims.Drain();
}

}  // namespace tfring
