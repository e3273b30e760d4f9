#include "tfring_ops/engine/negotiation/deadlock.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "tfring_ops/engine/error_messages.h"

namespace tfring {
namespace {

// The most requests that a message lists.
constexpr size_t kMostListed = 8;

bool Has(const std::vector<int32_t>& ranks, int32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Returns true if one of `ranks` counts.
bool AnyOf(const std::vector<int32_t>& ranks, const std::vector<bool>& counts) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int32_t rank) { return counts[rank]; });
}

}  // namespace

std::vector<PendingRequest> FindDeadlock(
    const std::vector<PendingRequest>& pending,
    const std::vector<bool>& quiet) {
  std::vector<bool> counts(quiet.size());
  for (const PendingRequest& one : pending) {
    for (const int32_t rank : one.submitted) counts[rank] = quiet[rank];
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const PendingRequest& one : pending) {
      if (AnyOf(one.missing, counts)) continue;
      // The request may still run, and then its ranks go on.
      for (const int32_t rank : one.submitted) {
        changed = changed || counts[rank];
        counts[rank] = false;
      }
    }
  }
  std::vector<PendingRequest> deadlock;
  for (const PendingRequest& one : pending) {
    if (AnyOf(one.submitted, counts)) deadlock.push_back(one);
  }
  return deadlock;
}

std::string DescribeDeadlock(const Members& members,
                             const std::vector<PendingRequest>& deadlock) {
  // Of several requests of the same ranks, only the first is listed.
  std::vector<const PendingRequest*> listed;
  for (const PendingRequest& one : deadlock) {
    const bool known = std::any_of(
        listed.begin(), listed.end(),
        [&](const auto* other) { return other->submitted == one.submitted; });
    if (!known) listed.push_back(&one);
  }
  // Sort by rank, because the order of arrival differs between runs.
  std::sort(listed.begin(), listed.end(), [](const auto* a, const auto* b) {
    return a->submitted < b->submitted;
  });
  std::string text = "ranks wait for one another: ";
  for (size_t i = 0; i < std::min(listed.size(), kMostListed); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ",
                    Ranks(members, listed[i]->submitted), " in ",
                    LabelOf(members, *listed[i]->request), " for ",
                    Ranks(members, listed[i]->missing));
  }
  if (listed.size() > kMostListed) {
    absl::StrAppend(&text, "; and ", listed.size() - kMostListed, " more");
  }
  return absl::StrCat(
      text,
      ". All ranks must make the same calls in the same order: look for a "
      "branch that they take differently.");
}

std::string DescribeWaits(const Members& members,
                          const std::vector<PendingRequest>& pending,
                          const std::vector<int32_t>& ranks) {
  std::string text;
  size_t listed = 0;
  for (const int32_t rank : ranks) {
    const auto found = std::find_if(
        pending.begin(), pending.end(),
        [&](const PendingRequest& one) { return Has(one.submitted, rank); });
    if (found == pending.end() || ++listed > kMostListed) continue;
    absl::StrAppend(&text, ", and ", Ranks(members, {rank}), " waits in ",
                    LabelOf(members, *found->request));
  }
  return text;
}

}  // namespace tfring
