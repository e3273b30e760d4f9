// How messages to users name requests and ranks.
#ifndef TFRING_OPS_ENGINE_ERROR_MESSAGES_H_
#define TFRING_OPS_ENGINE_ERROR_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// "rank 2", "ranks 0, 1 and 3"
std::string Ranks(const Members& members, const std::vector<int32_t>& ranks);

// "allreduce of 'metrics' (process set 2)"; with several tensors "allreduce of
// 'gradients/0' ('bias' to 'kernel')".
std::string LabelOf(const Members& members, const CollectiveRequest& request);

// InvalidArgument: an earlier collective of the name of `request` has not
// ended.
absl::Status NameInUse(const CollectiveRequest& request);

// Says that `what` has waited for the ranks `silent`, which send nothing.
std::string DescribeSilence(const Members& members, const std::string& what,
                            double waited_seconds,
                            const std::vector<int32_t>& silent,
                            double silent_seconds);
// Says that the ranks `silent` send nothing, if this rank does not wait for
// them.
std::string DescribeSilence(const Members& members,
                            const std::vector<int32_t>& silent,
                            double silent_seconds);

// The last sentence of the error with which an engine ends.
inline constexpr char kEndOfJob[] = " The job cannot go on without it.";

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_ERROR_MESSAGES_H_
