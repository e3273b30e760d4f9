// Ranks that wait for one another: rank 0 in a collective that rank 1 has not
// called, and rank 1 in one that rank 0 has not.
//
// A rank counts as blocked if everything that it has asked for waits for ranks
// that count, and it has asked for nothing new for a while.  Ranks that compute
// do not count, and neither do ranks that wait for computing ranks.  Requests
// that a step makes in another order than on another rank do not count while
// the step still makes more.  The coordinator cannot see whether another thread
// of a blocked rank will still ask for something.  So it warns, and the stall
// time-out decides.
//
// Pure functions.
#ifndef TFRING_OPS_ENGINE_NEGOTIATION_DEADLOCK_H_
#define TFRING_OPS_ENGINE_NEGOTIATION_DEADLOCK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// How often the coordinator looks, and after how long without a new request a
// rank is quiet.
inline constexpr double kDeadlockCheckSeconds = 0.25;
inline constexpr double kQuietSeconds = 5;

// A request that some ranks have submitted, and some ranks that have not joined
// have not.
struct PendingRequest {
  int64_t number;
  const CollectiveRequest* request;
  std::vector<int32_t> submitted, missing;
};

// Returns the requests of `pending` that ranks which count wait for.  `quiet`
// says, by rank, who has asked for nothing for a while.
std::vector<PendingRequest> FindDeadlock(
    const std::vector<PendingRequest>& pending, const std::vector<bool>& quiet);

// "ranks wait for one another: rank 0 in allreduce of 'a' for rank 1; ..."
std::string DescribeDeadlock(const Members& members,
                             const std::vector<PendingRequest>& deadlock);

// Returns the text ", and rank 1 waits in barrier of 'b'" for each of `ranks`
// that waits itself.
std::string DescribeWaits(const Members& members,
                          const std::vector<PendingRequest>& pending,
                          const std::vector<int32_t>& ranks);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_NEGOTIATION_DEADLOCK_H_
