#include "tfring_ops/base/options.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// A limit far beyond any use.
constexpr int64_t kMostFusedBytes = int64_t{1} << 40;
constexpr int64_t kMostSeconds = 1'000'000'000;

// This and the next functions leave `value` alone if the variable is unset or
// empty.
absl::Status ReadBytes(const char* variable, int64_t& value) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0 ||
      number > kMostFusedBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        variable, "='", text, "' must be a whole number of bytes from 0 to ",
        kMostFusedBytes));
  }
  value = number;
  return absl::OkStatus();
}

absl::Status ReadSeconds(const char* variable, double& value) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  double number = 0;
  // A NaN is in no range.
  if (!absl::SimpleAtod(text, &number) ||
      !(number >= 0 && number <= kMostSeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat(variable, "='", text,
                     "' must be a number of seconds from 0, which is never, "
                     "to ",
                     kMostSeconds));
  }
  value = number;
  return absl::OkStatus();
}

// Sets `value` to the meaning of the variable's word.
template <typename T>
absl::Status ReadWord(const char* variable,
                      const std::vector<std::pair<const char*, T>>& meanings,
                      T& value) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  std::vector<const char*> words;
  for (const auto& [word, meaning] : meanings) {
    if (absl::string_view(text) == word) {
      value = meaning;
      return absl::OkStatus();
    }
    words.push_back(word);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(variable, "='", text, "' must be ",
                   absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ",
                   words.back()));
}

absl::Status ReadSwitch(const char* variable, bool& value) {
  return ReadWord(variable, {{"0", false}, {"1", true}}, value);
}

absl::Status ReadAlgorithm(const char* variable, AllreduceAlgorithm& value) {
  std::vector<std::pair<const char*, AllreduceAlgorithm>> meanings;
  for (const auto algorithm :
       {AllreduceAlgorithm::kAuto, AllreduceAlgorithm::kRing,
        AllreduceAlgorithm::kHierarchical,
        AllreduceAlgorithm::kRecursiveDoubling}) {
    meanings.emplace_back(Name(algorithm), algorithm);
  }
  return ReadWord(variable, meanings, value);
}

absl::Status ReadGpuBackend(const char* variable, Options::GpuBackend& value) {
  using GpuBackend = Options::GpuBackend;
  return ReadWord(variable,
                  {{"ring", GpuBackend::kRing},
                   {"nccl", GpuBackend::kNccl},
                   {"auto", GpuBackend::kAuto}},
                  value);
}

}  // namespace

absl::StatusOr<Options> Options::FromEnvironment() {
  Options options;
  TFRING_RETURN_IF_ERROR(
      ReadBytes("TFRING_FUSION_THRESHOLD", options.fusion_threshold_bytes));
  TFRING_RETURN_IF_ERROR(ReadSwitch("TFRING_CUDA_IPC", options.cuda_ipc));
  TFRING_RETURN_IF_ERROR(
      ReadGpuBackend("TFRING_GPU_BACKEND", options.gpu_backend));
  TFRING_RETURN_IF_ERROR(
      ReadSwitch("TFRING_SHARED_MEMORY", options.shared_memory));
  TFRING_RETURN_IF_ERROR(ReadSeconds("TFRING_STALL_CHECK_TIME_SECONDS",
                                     options.stall_check_seconds));
  TFRING_RETURN_IF_ERROR(ReadSeconds("TFRING_STALL_SHUTDOWN_TIME_SECONDS",
                                     options.stall_shutdown_seconds));
  TFRING_RETURN_IF_ERROR(
      ReadSwitch("TFRING_DETERMINISTIC", options.deterministic));
  TFRING_RETURN_IF_ERROR(ReadAlgorithm("TFRING_ALLREDUCE", options.allreduce));
  TFRING_RETURN_IF_ERROR(ReadSwitch("TFRING_VERBOSE", options.verbose));
  return options;
}

}  // namespace tfring
