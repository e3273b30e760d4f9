// The contribution of a joined rank to the collectives of the remaining ranks.
//
// A ring needs all its ranks.  A joined rank therefore takes part in their
// collectives, with an entry of its own making that changes no result.  The
// file of each kind in collectives/ defines that entry, or refuses the kind.
// Such an entry is not multiplied by the request's prescale factor, but travels
// in the same way as the remaining ranks' entries.
#ifndef TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_
#define TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_

#include <deque>

#include "absl/status/status.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"

namespace tfring {

// Not thread-safe.
class NeutralContribution {
 public:
  // For `request`, as one of the ranks that have not joined has sent it.
  explicit NeutralContribution(const CollectiveRequest& request);

  NeutralContribution(const NeutralContribution&) = delete;
  NeutralContribution& operator=(const NeutralContribution&) = delete;

  // The memory that entry() works on, where those kernels work.  Called once,
  // before the entry runs.
  // REQUIRES: `kernels` outlives this.
  absl::Status Allocate(const Kernels& kernels);

  // Has no `done`.  Its memory is this object's.
  TensorEntry& entry() { return entry_; }

 private:
  TensorEntry entry_;
  std::deque<Workspace> memory_;  // of each tensor
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_
