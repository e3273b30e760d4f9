// Every function of the C API calls one of these: no exception crosses it.
#ifndef TFRING_OPS_CAPI_C_STATUS_H_
#define TFRING_OPS_CAPI_C_STATUS_H_

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tfring {

// Returns work(), or `otherwise` if the C++ library throws, for want of memory
// or threads.
template <typename Result, typename Work>
Result RunOr(Result otherwise, const Work& work) noexcept {
  try {
    return work();
  } catch (...) {
    return otherwise;
  }
}

// Calls work(), and ignores an exception.
template <typename Work>
void RunAnyway(const Work& work) noexcept {
  RunOr(false, [&] {
    work();
    return true;
  });
}

// Returns nullptr if work() is OK, and otherwise its message, which is valid
// until the same thread's next call.  An exception becomes an error.
template <typename Work>
const char* RunAsCStatus(const Work& work) noexcept {
  return RunOr("out of memory", [&]() -> const char* {
    static thread_local std::string sentence;
    absl::Status status;
    try {
      status = work();
    } catch (const std::exception& error) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("out of memory or threads: ", error.what()));
    }
    if (status.ok()) return nullptr;
    sentence = std::string(status.message());
    return sentence.c_str();
  });
}

// Returns the text that work() makes, which is valid until the same thread
// calls this again.  After an exception the text is empty.
template <typename Work>
const char* RunAsText(const Work& work) noexcept {
  return RunOr("", [&]() -> const char* {
    static thread_local std::string text;
    text = work();
    return text.c_str();
  });
}

}  // namespace tfring

#endif  // TFRING_OPS_CAPI_C_STATUS_H_
