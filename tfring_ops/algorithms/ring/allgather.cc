#include "tfring_ops/algorithms/ring/allgather.h"

#include <cstddef>
#include <vector>

#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::Status RingAllgather(const RingContext& context, const void* input,
                           void* output,
                           absl::Span<const int64_t> bytes_of_rank) {
  const int n = context.transport.size();
  const int rank = context.transport.rank();
  const std::vector<Range> runs = Runs(bytes_of_rank);
  context.kernels.Copy(static_cast<std::byte*>(output) + runs[rank].offset,
                       input, runs[rank].count);
  TFRING_RETURN_IF_ERROR(context.kernels.Synchronize());
  if (n == 1) return absl::OkStatus();

  RingBuffers buffers;
  buffers.input = buffers.output = output;
  buffers.count = runs.back().offset + runs.back().count;
  buffers.dtype = DataType::kUint8;
  Primitives prims(context, buffers);
  // Returns the run of the rank that is `j` places before this one in the ring.
  const auto run = [&](int j) { return runs[context.order.Before(j)]; };

  TFRING_RETURN_IF_ERROR(prims.Send(run(0)));
  for (int j = 1; j < n - 1; ++j) {
    TFRING_RETURN_IF_ERROR(prims.RecvCopySend(run(j)));
  }
  TFRING_RETURN_IF_ERROR(prims.Recv(run(n - 1)));
  return prims.Drain();
}

}  // namespace tfring
