#include "tfring_ops/algorithms/ring/reduce_scatter.h"

#include <algorithm>
#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/collectives/reduction.h"

namespace tfring {
namespace {

absl::Status ReduceOwn(ExecutionContext& context,
                       const CollectiveRequest& request,
                       const RingBuffers& buffers,
                       absl::Span<const Range> chunks) {
  return context.Delegates(request)
             ? context.stream_collectives()->ReduceScatterOwn(buffers, chunks)
             : RingReduceScatterOwn(context.ring(), buffers, chunks);
}

absl::Status ReduceOwnScaled(ExecutionContext& context,
                             const CollectiveRequest& request,
                             const TensorEntry::Buffer& buffer,
                             absl::Span<const Range> chunks) {
  const int size = context.ring().transport.size();
  const int64_t element_bytes = SizeInBytes(request.dtype);
  const auto* const input = static_cast<const std::byte*>(buffer.input);
  auto* const output = static_cast<std::byte*>(buffer.output);
  int64_t longest = 0;
  for (const Range& chunk : chunks) longest = std::max(longest, chunk.count);
  const int64_t part_count = std::clamp<int64_t>(
      context.MostFusedBytes() / element_bytes / size, 1, longest);
  TFRING_ASSIGN_OR_RETURN(
      std::byte* const scaled,
      context.FusionBuffer(part_count * size * element_bytes));
  for (int64_t first = 0; first < longest; first += part_count) {
    std::vector<Range> parts;
    int64_t total = 0;
    for (const Range& chunk : chunks) {
      const int64_t begin = std::min(first, chunk.count);
      const int64_t count = std::min(part_count, chunk.count - begin);
      context.ring().kernels.Scale(
          scaled + total * element_bytes,
          input + (chunk.offset + begin) * element_bytes, count, request.dtype,
          request.prescale_factor);
      parts.push_back({total, count});
      total += count;
    }
    TFRING_RETURN_IF_ERROR(context.ring().kernels.Synchronize());
    // An empty part has no place, and needs none.
    const int64_t own =
        std::min(first, chunks[context.ring().transport.rank()].count);
    TFRING_RETURN_IF_ERROR(
        ReduceOwn(context, request,
                  {scaled, output + own * element_bytes, total, request.dtype,
                   request.op, request.postscale_factor},
                  parts));
  }
  return absl::OkStatus();
}

class ReduceScatter : public Collective {
 public:
  std::string CheckRunsWithoutJoined(const std::vector<int32_t>& joined,
                                     const CollectiveRequest&) const override {
    return PartWouldBeLost(joined);
  }

  bool OnlyLaunches(const ExecutionContext& context,
                    const CollectiveRequest& request) const override {
    return context.Delegates(request);
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    TensorEntry& entry = *bucket.entries[0];
    AverageOver(bucket.contributors, entry.request);
    const CollectiveRequest& request = entry.request;
    const int size = context.ring().transport.size();
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorInfo& tensor = request.tensors[i];
      TensorEntry::Buffer buffer = entry.buffers[i];
      const int64_t bytes = SizeInBytes(request.dtype, tensor);
      if (bytes == 0) continue;
      const int64_t count = bytes / SizeInBytes(request.dtype);
      std::vector<Range> chunks;
      for (int rank = 0; rank < size; ++rank) {
        chunks.push_back(ElementsOfRank(tensor, count, rank, size));
      }
      buffer.output = OwnOutput(buffer.output,
                                chunks[context.ring().transport.rank()].offset *
                                    SizeInBytes(request.dtype));
      TFRING_RETURN_IF_ERROR(
          request.prescale_factor == 1.0
              ? ReduceOwn(context, request,
                          {buffer.input, buffer.output, count, request.dtype,
                           request.op, request.postscale_factor},
                          chunks)
              : ReduceOwnScaled(context, request, buffer, chunks));
    }
    return absl::OkStatus();
  }

 private:
  // Returns a rank's part of a tensor of `count` elements.
  virtual Range ElementsOfRank(const TensorInfo& tensor, int64_t count,
                               int rank, int size) const {
    const int64_t row_count = count / tensor.dims[0];
    const Range rows = RowsOfRank(tensor, rank, size);
    return {rows.offset * row_count, rows.count * row_count};
  }

  // Returns the output for this rank's part, which begins at `offset` bytes of
  // the whole tensor.
  virtual void* OwnOutput(void* output, int64_t /*offset*/) const {
    return output;
  }
};

// Each part of this rank's share is read before it is written.
class ScatterInPlace final : public ReduceScatter {
  Range ElementsOfRank(const TensorInfo& tensor, int64_t /*count*/, int rank,
                       int size) const override {
    return ShareOfRank(tensor, rank, size);
  }

  void* OwnOutput(void* output, int64_t offset) const override {
    return static_cast<std::byte*>(output) + offset;
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(ReduceScatter)
TFRING_DEFINE_COLLECTIVE(ScatterInPlace)

}  // namespace tfring
