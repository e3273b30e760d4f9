#include "tfring_ops/engine/collectives/collective.h"

namespace tfring {
namespace {

class Barrier final : public Collective {
 public:
  // That all ranks have agreed on it is all there is to it.
  absl::Status Run(ExecutionContext&, const Bucket&) const override {
    return absl::OkStatus();
  }
};

}  // namespace

TFRING_DEFINE_COLLECTIVE(Barrier)

}  // namespace tfring
