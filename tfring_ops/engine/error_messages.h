// How messages to users speak of requests and ranks.
#ifndef TFRING_OPS_ENGINE_ERROR_MESSAGES_H_
#define TFRING_OPS_ENGINE_ERROR_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// "rank 2", "ranks 0, 1 and 3"
std::string Ranks(const Members& members, const std::vector<int32_t>& ranks);

// "allreduce of 'metrics' (process set 2)"; with several tensors "allreduce of
// 'gradients/0' ('bias' to 'kernel')".
std::string What(const Members& members, const CollectiveRequest& request);

// Ends the message of an engine that ends.
inline constexpr char kEndOfJob[] = " The job cannot go on without it.";

// `rank` has waited for `silent`, whose engines do not answer.  It names who
// waits, as those who are silent read it too, if they ever go on.
std::string DescribeSilence(const Members& members,
                            const CollectiveRequest& request,
                            double waited_seconds, int32_t rank,
                            const std::vector<int32_t>& silent);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_ERROR_MESSAGES_H_
