#include "tfring_ops/offload/tier.h"

#include <map>
#include <mutex>
#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

absl::StatusOr<Tier*> Tier::Find(const std::string& directory) {
  static std::mutex& mutex = *new std::mutex();
  static auto& tiers = *new std::map<std::string, std::unique_ptr<Tier>>();
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Tier>& tier = tiers[directory];
  if (tier == nullptr) {
    if (directory.empty()) {
      tier = MakeHostTier();
    } else {
      TFRING_ASSIGN_OR_RETURN(tier, MakeDiskTier(directory));
    }
  }
  return tier.get();
}

Tier* Tier::FindPinned(int gpu) {
  static Tier* const tier = MakePinnedTier(gpu).release();
  return tier;
}

}  // namespace tfring
