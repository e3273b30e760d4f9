#include "tfring_ops/algorithms/pairwise/alltoall.h"

#include <numeric>
#include <vector>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

class Alltoall final : public Collective {
 public:
  bool ShapesAgree(const TensorInfo& a, const TensorInfo& b) const override {
    return SameButForRows(a, b);
  }

  // Every rank has to know all ranks' splits.
  std::vector<int64_t> Sizes(const CollectiveRequest& request) const override {
    return request.splits;
  }

  std::string CheckRunsWithoutJoined(const std::vector<int32_t>& joined,
                                     const CollectiveRequest&) const override {
    return PartWouldBeLost(joined);
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    TensorEntry& entry = *bucket.entries[0];
    const CollectiveRequest& request = entry.request;
    const std::vector<std::vector<int64_t>>& splits = bucket.response.sizes;
    const int rank = context.ring().transport.rank();
    std::vector<int64_t> received_splits;
    for (const std::vector<int64_t>& of_rank : splits) {
      received_splits.push_back(of_rank[rank]);
    }
    entry.on_received_splits(received_splits);
    struct Part {
      void* output;
      std::vector<int64_t> sent_bytes, received_bytes;
    };
    std::vector<Part> parts;
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      TensorInfo rows = request.tensors[i];
      const auto bytes_of = [&](const std::vector<int64_t>& rows_of_rank) {
        std::vector<int64_t> bytes;
        for (const int64_t count : rows_of_rank) {
          rows.dims[0] = count;
          bytes.push_back(SizeInBytes(request.dtype, rows));
        }
        return bytes;
      };
      Part part;
      part.sent_bytes = bytes_of(splits[rank]);
      part.received_bytes = bytes_of(received_splits);
      rows.dims[0] = std::accumulate(received_splits.begin(),
                                     received_splits.end(), int64_t{0});
      TFRING_ASSIGN_OR_RETURN(
          part.output, entry.allocate_output(static_cast<int>(i), rows.dims));
      parts.push_back(std::move(part));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      TFRING_RETURN_IF_ERROR(
          RingAlltoall(context.ring(), entry.buffers[i].input, parts[i].output,
                       parts[i].sent_bytes, parts[i].received_bytes));
    }
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Alltoall)

}  // namespace tfring
