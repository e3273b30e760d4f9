#include "tfring_ops/base/log.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"

namespace tfring {

void LogWarning(int rank, absl::string_view text) {
  // One call, so that the lines of several ranks do not mix.
  const std::string line =
      absl::StrCat("tfring warning on rank ", rank, ": ", text, "\n");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace tfring
