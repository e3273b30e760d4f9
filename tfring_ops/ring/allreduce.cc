#include "tfring_ops/ring/allreduce.h"

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/ring/chunks.h"

namespace tfring {

absl::Status RingAllreduce(const RingContext& context, RingBuffers buffers) {
  const int n = context.transport.size();
  const int rank = context.transport.rank();
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
  if (n == 1) {
    const Kernels& kernels = context.kernels;
    kernels.Copy(buffers.output, buffers.input,
                 buffers.count * SizeInBytes(buffers.dtype));
    if (buffers.scale != 1.0) {
      kernels.Scale(buffers.output, buffers.count, buffers.dtype,
                    buffers.scale);
    }
    kernels.Synchronize();
    return absl::OkStatus();
  }

  Primitives prims(context, buffers);
  // The chunk that was this rank's `j` steps ago.
  const auto chunk = [&](int j) {
    return ChunkOf(buffers.count, n, (rank + n - j) % n);
  };

  // Reduce-scatter.  Chunk r walks once round the ring and is whole at rank r.
  TFRING_RETURN_IF_ERROR(prims.Send(chunk(1)));
  for (int j = 2; j < n; ++j) {
    TFRING_RETURN_IF_ERROR(prims.RecvReduceSend(chunk(j)));
  }
  TFRING_RETURN_IF_ERROR(prims.RecvReduceCopySend(chunk(0)));

  // Allgather.  The whole chunks walk round once more.
  for (int j = 1; j < n - 1; ++j) {
    TFRING_RETURN_IF_ERROR(prims.RecvCopySend(chunk(j)));
  }
  TFRING_RETURN_IF_ERROR(prims.Recv(chunk(n - 1)));
  return prims.Drain();
}

}  // namespace tfring
