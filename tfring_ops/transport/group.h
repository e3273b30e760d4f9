// Some of the ranks of a transport, by themselves.
#ifndef TFRING_OPS_TRANSPORT_GROUP_H_
#define TFRING_OPS_TRANSPORT_GROUP_H_

#include <memory>
#include <vector>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Rank i of the group is rank members[i] of `whole`, which must outlive it.
// Its messages travel by `whole`, and so does an abort.
// REQUIRES: this rank is a member.
std::unique_ptr<Transport> MakeGroupTransport(Transport& whole,
                                              std::vector<int> members);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_GROUP_H_
