#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

// The coordinator knows which ranks have joined; Run tells them which was last.
class Join final : public Collective {
 public:
  // The last rank to join differs from time to time.
  bool is_cacheable() const override { return false; }

  absl::Status Run(ExecutionContext&, const Bucket& bucket) const override {
    bucket.entries[0]->on_joined(bucket.response.last_joined);
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Join)

}  // namespace tfring
