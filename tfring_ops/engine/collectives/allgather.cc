#include "tfring_ops/algorithms/ring/allgather.h"

#include <cstddef>
#include <string>
#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

absl::Status Gather(ExecutionContext& context, const void* input, void* output,
                    const std::vector<int64_t>& bytes_of_rank) {
  return context.stream_collectives() != nullptr
             ? context.stream_collectives()->Allgather(input, output,
                                                       bytes_of_rank)
             : RingAllgather(context.ring(), input, output, bytes_of_rank);
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
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      TensorInfo part = request.tensors[i];
      std::vector<int64_t> dims = part.dims;
      dims[0] = 0;
      std::vector<int64_t> bytes_of_rank;
      for (const std::vector<int64_t>& rows : bucket.response.sizes) {
        // Ranks that have joined have none.
        part.dims[0] = rows.empty() ? 0 : rows[i];
        dims[0] += part.dims[0];
        bytes_of_rank.push_back(SizeInBytes(request.dtype, part));
      }
      TFRING_ASSIGN_OR_RETURN(void* const output,
                              entry.allocate_output(static_cast<int>(i), dims));
      TFRING_RETURN_IF_ERROR(
          Gather(context, entry.buffers[i].input, output, bytes_of_rank));
    }
    return absl::OkStatus();
  }
};

// All ranks have the whole shape, and so know all rows.
class GatherInPlace final : public Collective {
 public:
  absl::Status Check(const Members&,
                     const CollectiveRequest& request) const override {
    return CheckHasRows(request);
  }

  std::string CheckRunsWithoutJoined(const std::vector<int32_t>& joined,
                                     const CollectiveRequest&) const override {
    return PartWouldBeLost(joined);
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    const TensorEntry& entry = *bucket.entries[0];
    const CollectiveRequest& request = entry.request;
    const int size = context.ring().transport.size();
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorInfo& tensor = request.tensors[i];
      const int64_t bytes = SizeInBytes(request.dtype, tensor);
      if (bytes == 0) continue;
      const int64_t row_bytes = bytes / tensor.dims[0];
      std::vector<int64_t> bytes_of_rank;
      for (int rank = 0; rank < size; ++rank) {
        const Range rows = RowsOfRank(tensor, rank, size);
        bytes_of_rank.push_back(rows.count * row_bytes);
      }
      const int rank = context.ring().transport.rank();
      const auto* const own =
          static_cast<const std::byte*>(entry.buffers[i].input) +
          RowsOfRank(tensor, rank, size).offset * row_bytes;
      TFRING_RETURN_IF_ERROR(
          Gather(context, own, entry.buffers[i].output, bytes_of_rank));
    }
    return absl::OkStatus();
  }
};

}  // namespace

const Collective& AllgatherCollective() {
  static const Allgather collective;
  return collective;
}

const Collective& GatherInPlaceCollective() {
  static const GatherInPlace collective;
  return collective;
}

}  // namespace tfring
