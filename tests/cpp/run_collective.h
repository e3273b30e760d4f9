// One collective, without an engine around it.
#ifndef TESTS_CPP_RUN_COLLECTIVE_H_
#define TESTS_CPP_RUN_COLLECTIVE_H_

#include "absl/status/status.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

// Runs `entry` on all ranks of the context's transport.  No rank has joined.
inline absl::Status RunCollective(ExecutionContext& context, TensorEntry& entry,
                                  const Response& response = {}) {
  const int size = context.ring().transport.size();
  TensorEntry* const entries[] = {&entry};
  return CollectiveOf(entry.request.kind)
      .Run(context, {entries, response, size, Members(size)});
}

}  // namespace tfring

#endif  // TESTS_CPP_RUN_COLLECTIVE_H_
