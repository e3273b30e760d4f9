#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

class Barrier final : public Collective {
 public:
  // A barrier is complete once all ranks have agreed on it.
  absl::Status Run(ExecutionContext&, const Bucket&) const override {
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Barrier)

}  // namespace tfring
