#include "tfring_ops/engine/collectives/collective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tfring {

const char* Name(CollectiveKind kind) {
  switch (kind) {
#define TFRING_NAME(NAME, TEXT) \
  case CollectiveKind::k##NAME: \
    return TEXT;
    TFRING_FOR_EACH_COLLECTIVE(TFRING_NAME)
#undef TFRING_NAME
  }
  return "unknown collective";
}

const Collective& CollectiveOf(CollectiveKind kind) {
  switch (kind) {
#define TFRING_GET(NAME, TEXT)  \
  case CollectiveKind::k##NAME: \
    return NAME##Collective();
    TFRING_FOR_EACH_COLLECTIVE(TFRING_GET)
#undef TFRING_GET
  }
  // A message with another kind is refused when it is decoded.
  __builtin_unreachable();
}

absl::Status Collective::Check(const Members&, const CollectiveRequest&) const {
  return absl::OkStatus();
}

std::vector<int64_t> Collective::Sizes(const CollectiveRequest&) const {
  return {};
}

std::string Collective::CheckRunsWithoutJoined(const std::vector<int32_t>&,
                                               const CollectiveRequest&) const {
  return "";
}

bool Collective::OnlyLaunches(const ExecutionContext&,
                              const CollectiveRequest&) const {
  return false;
}

void Collective::MakeNeutral(CollectiveRequest&) const {}

void Collective::FillNeutral(const Kernels&, const CollectiveRequest&,
                             std::byte*, int64_t) const {}

bool SameButForRows(const TensorInfo& a, const TensorInfo& b) {
  return a.dims.size() == b.dims.size() &&
         std::equal(a.dims.begin() + 1, a.dims.end(), b.dims.begin() + 1);
}

std::string PartWouldBeLost(const std::vector<int32_t>& joined) {
  return absl::StrCat("rank ", joined[0],
                      " has joined, and its part of the result would be lost");
}

}  // namespace tfring
