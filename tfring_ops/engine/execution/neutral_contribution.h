// What a joined rank contributes to the collectives of the remaining ranks.
//
// A ring needs all its ranks.  A joined rank therefore takes part in their
// collectives with an entry that changes no result.  Each file in collectives/
// defines that entry for its kind, or refuses the kind.  The entry is not
// multiplied by the request's prescale factor, but travels in the same way as
// the remaining ranks' entries.
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
  // `request` was sent by one of the ranks that have not joined.
  explicit NeutralContribution(const CollectiveRequest& request);

  NeutralContribution(const NeutralContribution&) = delete;
  NeutralContribution& operator=(const NeutralContribution&) = delete;

  // Allocates the memory of entry(), where `kernels` work.  It is called once,
  // before the entry runs.
  // REQUIRES:  `kernels` outlives this.
  absl::Status Allocate(const Kernels& kernels);

  // The entry has no `done`, and this object owns its memory.
  TensorEntry& entry() { return entry_; }

 private:
  TensorEntry entry_;
  std::deque<Workspace> memory_;  // The memory of each tensor.
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_
