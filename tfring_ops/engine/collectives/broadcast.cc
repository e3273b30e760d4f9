#include "tfring_ops/algorithms/ring/broadcast.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

class Broadcast final : public Collective {
 public:
  absl::Status Check(const Members& members,
                     const CollectiveRequest& request) const override {
    if (members.RankOf(request.root_rank) >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "broadcast of '", request.name, "'", members.Suffix(),
        ": root_rank is ", request.root_rank, ", which is not one of its ",
        "ranks ", absl::StrJoin(members.world_ranks, ", "),
        ". Pass a rank as tfring.rank() gives it."));
  }

  // Broadcasts include optimizers' variables; their names hold the whole path
  // in one part.
  bool roles_agree() const override { return false; }

  std::string CheckRunsWithoutJoined(
      const std::vector<int32_t>& joined,
      const CollectiveRequest& request) const override {
    if (std::find(joined.begin(), joined.end(), request.root_rank) ==
        joined.end()) {
      return "";
    }
    return absl::StrCat("its root, rank ", request.root_rank,
                        ", has joined and sends nothing");
  }

  bool OnlyLaunches(const ExecutionContext& context,
                    const CollectiveRequest&) const override {
    return context.stream_collectives() != nullptr;
  }

  absl::Status Run(ExecutionContext& context,
                   const Bucket& bucket) const override {
    const TensorEntry& entry = *bucket.entries[0];
    const CollectiveRequest& request = entry.request;
    const int root = bucket.members.RankOf(request.root_rank);
    for (size_t i = 0; i < request.tensors.size(); ++i) {
      const TensorEntry::Buffer& buffer = entry.buffers[i];
      const int64_t bytes = SizeInBytes(request.dtype, request.tensors[i]);
      if (context.ring().transport.rank() == root) {
        context.ring().kernels.Copy(buffer.output, buffer.input, bytes);
        TFRING_RETURN_IF_ERROR(context.ring().kernels.Synchronize());
      }
      TFRING_RETURN_IF_ERROR(
          context.stream_collectives() != nullptr
              ? context.stream_collectives()->Broadcast(buffer.output, bytes,
                                                        root)
              : RingBroadcast(context.ring(), buffer.output, bytes, root));
    }
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Broadcast)

}  // namespace tfring
