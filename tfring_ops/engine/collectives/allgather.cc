#include "tfring_ops/algorithms/ring/allgather.h"

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/execution/packing.h"

namespace tfring {
namespace {

absl::Status Gather(ExecutionContext& context, const void* input, void* output,
                    const std::vector<int64_t>& bytes_of_rank) {
  return context.stream_collectives() != nullptr
             ? context.stream_collectives()->Allgather(input, output,
                                                       bytes_of_rank)
             : RingAllgather(context.ring(), input, output, bytes_of_rank);
}

// A tensor of an allgather.
struct Part {
  const void* input;
  std::byte* output;
  std::vector<int64_t> bytes_of_rank;
  int64_t bytes;  // of all ranks
};

// Gathers the short parts of a rank as one message: the fusion buffer holds
// them in a row.
absl::Status GatherStaged(ExecutionContext& context,
                          absl::Span<const Part> parts) {
  const Kernels& kernels = context.ring().kernels;
  const int rank = context.ring().transport.rank();
  const auto size = static_cast<size_t>(context.ring().transport.size());
  std::vector<int64_t> bytes_of_rank(size);
  int64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.bytes;
    for (size_t i = 0; i < size; ++i) bytes_of_rank[i] += part.bytes_of_rank[i];
  }
  if (bytes == 0) return absl::OkStatus();
  TFRING_ASSIGN_OR_RETURN(std::byte* const stage, context.FusionBuffer(bytes));
  std::byte* const own = std::accumulate(bytes_of_rank.begin(),
                                         bytes_of_rank.begin() + rank, stage);
  std::vector<CopyPiece> copies;
  std::byte* place = own;
  for (const Part& part : parts) {
    const int64_t own_bytes = part.bytes_of_rank[rank];
    if (own_bytes > 0) copies.push_back({part.input, place, own_bytes});
    place += own_bytes;
  }
  kernels.CopyPieces(copies, DataType::kUint8, DataType::kUint8, 1.0);
  TFRING_RETURN_IF_ERROR(Gather(context, own, stage, bytes_of_rank));
  copies.clear();
  place = stage;
  std::vector<int64_t> offsets(parts.size());  // in the outputs
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < parts.size(); ++j) {
      const int64_t count = parts[j].bytes_of_rank[i];
      if (count > 0) {
        copies.push_back({place, parts[j].output + offsets[j], count});
      }
      place += count;
      offsets[j] += count;
    }
  }
  kernels.CopyPieces(copies, DataType::kUint8, DataType::kUint8, 1.0);
  return kernels.Synchronize();
}

// Gathers short tensors together, and every other tensor by itself.
absl::Status GatherAll(ExecutionContext& context,
                       absl::Span<const Part> parts) {
  const int64_t most_short_bytes =
      kStagedBytes * context.ring().transport.size();
  std::vector<Part> staged;
  int64_t staged_bytes = 0;
  const auto flush = [&]() -> absl::Status {
    if (staged.size() > 1) {
      TFRING_RETURN_IF_ERROR(GatherStaged(context, staged));
    } else if (!staged.empty()) {  // Nothing is gained by copying one.
      TFRING_RETURN_IF_ERROR(Gather(context, staged[0].input, staged[0].output,
                                    staged[0].bytes_of_rank));
    }
    staged.clear();
    staged_bytes = 0;
    return absl::OkStatus();
  };
  for (const Part& part : parts) {
    if (part.bytes > most_short_bytes ||
        part.bytes > context.fusion_threshold_bytes()) {
      TFRING_RETURN_IF_ERROR(
          Gather(context, part.input, part.output, part.bytes_of_rank));
      continue;
    }
    if (staged_bytes + part.bytes > context.fusion_threshold_bytes()) {
      TFRING_RETURN_IF_ERROR(flush());
    }
    staged.push_back(part);
    staged_bytes += part.bytes;
  }
  return flush();
}

class Allgather final : public Collective {
 public:
  bool ShapesAgree(const TensorInfo& a, const TensorInfo& b) const override {
    return SameButForRows(a, b);
  }

  // Every rank has to know all ranks' rows.
  std::vector<int64_t> Sizes(const CollectiveRequest& request) const override {
    std::vector<int64_t> rows;
    for (const TensorInfo& tensor : request.tensors) {
      rows.push_back(tensor.dims[0]);
    }
    return rows;
  }

  void MakeNeutral(CollectiveRequest& request) const override {
    for (TensorInfo& tensor : request.tensors) tensor.dims[0] = 0;
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    TensorEntry& entry = *bucket.entries[0];
    if (entry.on_contributors) entry.on_contributors(bucket.contributors);
    const CollectiveRequest& request = entry.request;
    std::vector<Part> parts;
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      TensorInfo of_rank = request.tensors[i];
      std::vector<int64_t> dims = of_rank.dims;
      dims[0] = 0;
      Part part{entry.buffers[i].input, nullptr, {}, 0};
      for (const std::vector<int64_t>& rows : bucket.response.sizes) {
        // Ranks that have joined have none.
        of_rank.dims[0] = rows.empty() ? 0 : rows[i];
        dims[0] += of_rank.dims[0];
        part.bytes_of_rank.push_back(SizeInBytes(request.dtype, of_rank));
        part.bytes += part.bytes_of_rank.back();
      }
      TFRING_ASSIGN_OR_RETURN(void* const output,
                              entry.allocate_output(static_cast<int>(i), dims));
      part.output = static_cast<std::byte*>(output);
      parts.push_back(std::move(part));
    }
    return GatherAll(context, parts);
  }
};

// Every rank knows all shares, because it knows the whole shape.
class GatherInPlace final : public Collective {
 public:
  std::string CheckRunsWithoutJoined(const std::vector<int32_t>& joined,
                                     const CollectiveRequest&) const override {
    return PartWouldBeLost(joined);
  }

  bool OnlyLaunches(const ExecutionContext& context,
                    const CollectiveRequest&) const override {
    return context.stream_collectives() != nullptr;
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    const TensorEntry& entry = *bucket.entries[0];
    const CollectiveRequest& request = entry.request;
    const int size = context.ring().transport.size();
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorInfo& tensor = request.tensors[i];
      if (SizeInBytes(request.dtype, tensor) == 0) continue;
      const int64_t element_bytes = SizeInBytes(request.dtype);
      std::vector<int64_t> bytes_of_rank;
      for (int rank = 0; rank < size; ++rank) {
        bytes_of_rank.push_back(ShareOfRank(tensor, rank, size).count *
                                element_bytes);
      }
      const int rank = context.ring().transport.rank();
      const auto* own = static_cast<const std::byte*>(entry.buffers[i].input);
      if (!entry.inputs_are_shares) {
        own += ShareOfRank(tensor, rank, size).offset * element_bytes;
      }
      TFRING_RETURN_IF_ERROR(
          Gather(context, own, entry.buffers[i].output, bytes_of_rank));
    }
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Allgather)
TFRING_DEFINE_COLLECTIVE(GatherInPlace)

}  // namespace tfring
