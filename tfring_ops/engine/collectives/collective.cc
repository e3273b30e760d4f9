#include "tfring_ops/engine/collectives/collective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tfring {

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

bool SameButForRows(const TensorInfo& a, const TensorInfo& b) {
  return a.dims.size() == b.dims.size() &&
         std::equal(a.dims.begin() + 1, a.dims.end(), b.dims.begin() + 1);
}

std::string PartWouldBeLost(const std::vector<int32_t>& joined) {
  return absl::StrCat("rank ", joined[0],
                      " has joined, and its part of the result would be lost");
}

}  // namespace tfring
