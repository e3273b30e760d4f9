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
std::string LabelOf(const Members& members, const CollectiveRequest& request);

// `what` has waited for `silent`, from whom the ranks hear nothing.
std::string DescribeSilence(const Members& members, const std::string& what,
                            double waited_seconds,
                            const std::vector<int32_t>& silent,
                            double silent_seconds);
// The same where this rank does not wait for them.
std::string DescribeSilence(const Members& members,
                            const std::vector<int32_t>& silent,
                            double silent_seconds);

// Ends the message of an engine that ends.
inline constexpr char kEndOfJob[] = " The job cannot go on without it.";

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_ERROR_MESSAGES_H_
