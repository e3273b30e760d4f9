// A transport of some of the ranks of another transport.
#ifndef TFRING_OPS_TRANSPORT_GROUP_H_
#define TFRING_OPS_TRANSPORT_GROUP_H_

#include <memory>
#include <vector>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Rank i of the group is rank members[i] of `whole`, which must outlive it and
// carries its messages.  An abort aborts `whole`.
// REQUIRES: this rank is a member.
std::unique_ptr<Transport> MakeGroupTransport(Transport& whole,
                                              std::vector<int> members);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_GROUP_H_
