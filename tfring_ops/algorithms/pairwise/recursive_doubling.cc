#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"

#include <algorithm>
#include <cstddef>

#include "tfring_ops/algorithms/pairwise/doubling.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// Allreduces one block of at most kDoublingBlockBytes.
absl::Status AllreduceBlock(const RingContext& context,
                            const RingBuffers& buffers, std::byte* received) {
  const RingOrder& order = context.order;
  const Kernels& kernels = context.kernels;
  const Doubling doubling(order.place, order.size());
  const int64_t bytes = buffers.count * SizeInBytes(buffers.dtype);
  if (doubling.gives()) {
    const int peer = order.ranks[doubling.surplus_peer()];
    TFRING_RETURN_IF_ERROR(SendRecv(context, peer, buffers.input,
                                    /*received=*/nullptr, bytes));
    return SendRecv(context, peer, /*sent=*/nullptr, buffers.output, bytes);
  }

  const void* own = buffers.input;
  const auto reduce = [&](const void* first, const void* second) {
    kernels.Reduce(buffers.output, first, second, buffers.count, buffers.dtype,
                   buffers.op);
    own = buffers.output;
    return kernels.Synchronize();
  };
  if (doubling.takes()) {
    TFRING_RETURN_IF_ERROR(SendRecv(context,
                                    order.ranks[doubling.surplus_peer()],
                                    /*sent=*/nullptr, received, bytes));
    TFRING_RETURN_IF_ERROR(reduce(received, own));
  }
  for (int distance = 1; distance < doubling.doublers(); distance *= 2) {
    TFRING_RETURN_IF_ERROR(SendRecv(
        context, order.ranks[doubling.Peer(distance)], own, received, bytes));
    TFRING_RETURN_IF_ERROR(doubling.ComesFirst(distance)
                               ? reduce(own, received)
                               : reduce(received, own));
  }
  if (buffers.scale != 1.0) {
    kernels.Scale(buffers.output, buffers.count, buffers.dtype, buffers.scale);
    TFRING_RETURN_IF_ERROR(kernels.Synchronize());
  }
  if (!doubling.takes()) return absl::OkStatus();
  return SendRecv(context, order.ranks[doubling.surplus_peer()], buffers.output,
                  /*received=*/nullptr, bytes);
}

}  // namespace

absl::Status RecursiveDoublingAllreduce(const RingContext& context,
                                        RingBuffers buffers) {
  const int n = context.order.size();
  if (n == 1) return RingAllreduce(context, buffers);
  if (buffers.op == ReduceOp::kAverage) buffers.scale /= n;
  const int64_t element_bytes = SizeInBytes(buffers.dtype);
  const int64_t block_count = kDoublingBlockBytes / element_bytes;
  TFRING_ASSIGN_OR_RETURN(
      std::byte* const received,
      context.scratch.AtLeast(std::min(buffers.count, block_count) *
                              element_bytes));
  for (int64_t first = 0; first < buffers.count; first += block_count) {
    RingBuffers block = buffers;
    const int64_t offset = first * element_bytes;
    block.input = static_cast<const std::byte*>(buffers.input) + offset;
    block.output = static_cast<std::byte*>(buffers.output) + offset;
    block.count = std::min(block_count, buffers.count - first);
    TFRING_RETURN_IF_ERROR(AllreduceBlock(context, block, received));
  }
  return absl::OkStatus();
}

}  // namespace tfring
