#ifndef TFRING_OPS_BASE_STATUS_MACROS_H_
#define TFRING_OPS_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Leaves the calling function with the status of `expression` unless it is OK.
#define TFRING_RETURN_IF_ERROR(expression)                                \
  do {                                                                    \
    if (absl::Status tfring_status = (expression); !tfring_status.ok()) { \
      return tfring_status;                                               \
    }                                                                     \
  } while (false)

// Declares or assigns `target` from a StatusOr, or leaves with its status.
#define TFRING_ASSIGN_OR_RETURN(target, expression)                          \
  TFRING_ASSIGN_OR_RETURN_(TFRING_CONCAT_(tfring_result_, __LINE__), target, \
                           expression)
#define TFRING_ASSIGN_OR_RETURN_(result, target, expression) \
  auto result = (expression);                                \
  if (!result.ok()) return std::move(result).status();       \
  target = *std::move(result)
#define TFRING_CONCAT_(a, b) TFRING_CONCAT_IMPL_(a, b)
#define TFRING_CONCAT_IMPL_(a, b) a##b

#endif  // TFRING_OPS_BASE_STATUS_MACROS_H_
