#include "tfring_ops/algorithms/ring/allgather.h"

#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

class Allgather final : public Collective {
 public:
  bool ShapesAgree(const TensorInfo& a, const TensorInfo& b) const override {
    return SameButForRows(a, b);
  }

  // Every rank has to know all ranks' rows.
  bool is_cacheable() const override { return false; }

  void Collect(int rank, int size, const CollectiveRequest& request,
               Response& response) const override {
    response.first_dims.resize(request.tensors.size(),
                               std::vector<int64_t>(size));
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      response.first_dims[i][rank] = request.tensors[i].dims[0];
    }
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
      for (const int64_t first_dim : bucket.response.first_dims[i]) {
        dims[0] += first_dim;
        part.dims[0] = first_dim;
        bytes_of_rank.push_back(SizeInBytes(request.dtype, part));
      }
      TFRING_ASSIGN_OR_RETURN(void* const output,
                              entry.allocate_output(static_cast<int>(i), dims));
      const void* const input = entry.buffers[i].input;
      TFRING_RETURN_IF_ERROR(
          context.stream_collectives() != nullptr
              ? context.stream_collectives()->Allgather(input, output,
                                                        bytes_of_rank)
              : RingAllgather(context.ring(), input, output, bytes_of_rank));
    }
    return absl::OkStatus();
  }
};

}  // namespace

const Collective& AllgatherCollective() {
  static const Allgather collective;
  return collective;
}

}  // namespace tfring
