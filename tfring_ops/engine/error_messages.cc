#include "tfring_ops/engine/error_messages.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tfring {

std::string Ranks(const Members& members, const std::vector<int32_t>& ranks) {
  std::vector<int32_t> of_world;
  for (const int32_t rank : ranks) {
    of_world.push_back(members.world_ranks[rank]);
  }
  if (of_world.size() == 1) return absl::StrCat("rank ", of_world[0]);
  return absl::StrCat("ranks ",
                      absl::StrJoin(of_world.begin(), of_world.end() - 1, ", "),
                      " and ", of_world.back());
}

std::string LabelOf(const Members& members, const CollectiveRequest& request) {
  std::string what =
      absl::StrCat(Name(request.kind), " of '", request.name, "'");
  if (!request.tensors.empty()) {
    const std::string& first = request.tensors.front().name;
    if (request.tensors.size() > 1) {
      absl::StrAppend(&what, " ('", first, "' to '",
                      request.tensors.back().name, "')");
    } else if (!first.empty() && first != request.name) {
      absl::StrAppend(&what, " ('", first, "')");
    }
  }
  return absl::StrCat(what, members.Suffix());
}

absl::Status NameInUse(const CollectiveRequest& request) {
  return absl::InvalidArgumentError(absl::StrCat(
      Name(request.kind), " of '", request.name,
      "': this rank already has a collective of that name in flight. Give "
      "each its own name=, or wait for the first."));
}

std::string DescribeSilence(const Members& members, const std::string& what,
                            double waited_seconds,
                            const std::vector<int32_t>& silent,
                            double silent_seconds) {
  return absl::StrCat(what, " has waited ", std::lround(waited_seconds),
                      " s for ", Ranks(members, silent), "; ",
                      DescribeSilence(members, silent, silent_seconds));
}

std::string DescribeSilence(const Members& members,
                            const std::vector<int32_t>& silent,
                            double silent_seconds) {
  return absl::StrCat("nothing has been heard from ", Ranks(members, silent),
                      " for ", std::lround(silent_seconds),
                      " s: a process hangs or was stopped, or a machine cannot "
                      "be reached.");
}

}  // namespace tfring
