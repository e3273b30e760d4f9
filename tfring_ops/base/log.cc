#include "tfring_ops/base/log.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"

namespace tfring {

namespace {

void LogLine(absl::string_view kind, int rank, absl::string_view text) {
  // Write the line in one call, so that the lines of several ranks do not mix.
  const std::string line =
      absl::StrCat("tfring ", kind, " on rank ", rank, ": ", text, "\n");
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

void LogWarning(int rank, absl::string_view text) {
  LogLine("warning", rank, text);
}

void LogInfo(int rank, absl::string_view text) { LogLine("info", rank, text); }

}  // namespace tfring
