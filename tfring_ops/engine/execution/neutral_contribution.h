// The contribution of a rank that has joined to the collectives of the others.
//
// A ring needs all its ranks.  One that has joined therefore takes part in the
// others' collectives, with an entry of its own making that changes no result:
//
// - allreduce: zeros for a sum or an average, in general the identity of the
//   operation; an average divides by the ranks that contribute.  adasum: zeros.
//   They are not multiplied by the request's prescale factor, but travel the
//   way that it has the others' take.
// - allgather: no rows.
// - broadcast: receives, and drops what it has received.
// - barrier: nothing.
//
// A reducescatter or an alltoall would have a part of the result for the rank
// that has joined, where it would be lost; those fail, as does a broadcast from
// such a rank.  See CheckRunsWithoutJoined.
#ifndef TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_
#define TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

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

// Makes an average a sum that is divided by `contributors`: afterwards, but
// before it where that sum could be infinite and the average is not.
void AverageOver(int contributors, CollectiveRequest& request);

// Why `request` cannot run without the ranks `joined` of the world; empty if it
// can.
std::string CheckRunsWithoutJoined(const std::vector<int32_t>& joined,
                                   const CollectiveRequest& request);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_EXECUTION_NEUTRAL_CONTRIBUTION_H_
