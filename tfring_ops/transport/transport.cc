#include "tfring_ops/transport/transport.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace tfring {
namespace {

constexpr char kTimeout[] = "tfring/timeout";

}  // namespace

absl::Status TimedOut(int peer, double seconds) {
  absl::Status status = absl::DeadlineExceededError(absl::StrCat(
      "rank ", peer, " has sent or taken nothing for ", seconds, " s"));
  status.SetPayload(kTimeout, absl::Cord());
  return status;
}

bool IsTimeout(const absl::Status& status) {
  return status.GetPayload(kTimeout).has_value();
}

}  // namespace tfring
