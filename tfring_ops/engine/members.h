// The ranks of the world that a process set has.
#ifndef TFRING_OPS_ENGINE_MEMBERS_H_
#define TFRING_OPS_ENGINE_MEMBERS_H_

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tfring {

// An engine numbers its ranks from 0.  Users know only the ranks of the world,
// so messages name these.
struct Members {
  // All ranks of a world of `size` ranks.
  explicit Members(int size) : world_ranks(size) {
    std::iota(world_ranks.begin(), world_ranks.end(), 0);
  }
  Members(int id, std::vector<int32_t> world_ranks)
      : id(id), world_ranks(std::move(world_ranks)) {}

  int size() const { return static_cast<int>(world_ranks.size()); }

  // Returns the rank in the set of a rank of the world; -1 if it is not in the
  // set.
  int RankOf(int world_rank) const {
    for (int rank = 0; rank < size(); ++rank) {
      if (world_ranks[rank] == world_rank) return rank;
    }
    return -1;
  }

  // " (process set 2)", for messages; nothing for the world.
  std::string Suffix() const {
    return id == 0 ? "" : absl::StrCat(" (process set ", id, ")");
  }

  int id = 0;                        // 0 is the world
  std::vector<int32_t> world_ranks;  // by rank in the set
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_MEMBERS_H_
