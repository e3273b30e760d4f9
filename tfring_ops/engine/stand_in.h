// What a rank that has joined does in the collectives of those that have not.
//
// A ring needs all its ranks.  One that has joined therefore takes part in what
// the others ask for, by an entry of its own making, which changes no result:
//
// - allreduce: zeros for a sum or an average, in general the identity of the
//   operation; an average divides by the ranks that contribute.  adasum: zeros.
// - allgather: no rows.
// - broadcast: receives, and drops what it has received.
// - barrier: nothing.
//
// A reducescatter or an alltoall would have a part of the result for the rank
// that has joined, where it would be lost; those fail, as does a broadcast from
// such a rank.  See WhyNotWithout.
#ifndef TFRING_OPS_ENGINE_STAND_IN_H_
#define TFRING_OPS_ENGINE_STAND_IN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Not thread-safe.
class StandIn {
 public:
  // For `request`, as one of the ranks that have not joined has sent it.
  explicit StandIn(const CollectiveRequest& request);

  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;

  // Has no `done`.  Its memory is this object's.
  TensorEntry& entry() { return entry_; }

 private:
  TensorEntry entry_;
  std::vector<std::vector<std::byte>> memory_;  // of each tensor
};

// Makes an average one over `contributors` ranks, rather than over all.
void AverageOver(int contributors, CollectiveRequest& request);

// Why `request` cannot run without the ranks `joined` of the world; empty if it
// can.
std::string WhyNotWithout(const std::vector<int32_t>& joined,
                          const CollectiveRequest& request);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_STAND_IN_H_
