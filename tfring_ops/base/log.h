#ifndef TFRING_OPS_BASE_LOG_H_
#define TFRING_OPS_BASE_LOG_H_

#include "absl/strings/string_view.h"

namespace tfring {

// Writes one line to standard error.  Thread-safe.
void LogWarning(int rank, absl::string_view text);
// Writes `text` only if TFRING_VERBOSE is set.
void LogInfo(int rank, absl::string_view text);

}  // namespace tfring

#endif  // TFRING_OPS_BASE_LOG_H_
