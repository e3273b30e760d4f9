// Memory of the host, outside of TensorFlow's allocators, for feature maps
// between their uses.
//
// Thread-safe.
//
// Invariants:
// - A slot's memory is given back when the slot is destroyed, and by nothing
//   else.
// - Memory in use and memory kept for later slots are together at most the peak
//   of use, and one slot.
#ifndef TFRING_OPS_OFFLOAD_TIER_H_
#define TFRING_OPS_OFFLOAD_TIER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"

namespace tfring {

class Tier {
 public:
  // The place of one tensor.
  class Slot {
   public:
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    char* memory() const { return block_; }

   private:
    friend class Tier;

    Slot(Tier* tier, char* block, int64_t bytes)
        : tier_(tier), block_(block), bytes_(bytes) {}

    Tier* const tier_;
    char* const block_;
    const int64_t bytes_;  // the size of the block
  };

  struct Use {
    int64_t in_use_bytes = 0;
    int64_t peak_bytes = 0;      // the most that were in use at once
    int64_t reserved_bytes = 0;  // in use, or free for later slots
  };

  // A tier of memory from the C library, and a tier of memory that GPUs can
  // access, which the driver of `gpu` allocates.
  static std::unique_ptr<Tier> MakePageable();
  static std::unique_ptr<Tier> MakePinned(int gpu);
  // The tiers that all plans share, which are never destroyed.  `gpu` is any
  // GPU in use.
  static Tier* Pageable();
  static Tier* Pinned(int gpu);

  ~Tier();

  // Returns a slot.  ResourceExhausted if there is no room.
  // REQUIRES: bytes > 0; the tier outlives the slot.
  absl::StatusOr<std::unique_ptr<Slot>> Allocate(int64_t bytes);

  Use use() const;

 private:
  // The source of blocks.
  struct BlockSource {
    // The error names the remedy.
    std::function<absl::StatusOr<void*>(int64_t bytes)> allocate;
    std::function<void(void* block)> free;
  };

  explicit Tier(BlockSource source) : source_(std::move(source)) {}

  void GiveBack(char* block, int64_t bytes);

  const BlockSource source_;
  mutable std::mutex mutex_;  // of all that follows, and of the source
  Use use_;
  std::multimap<int64_t, char*> free_;  // free blocks, by size
};

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_TIER_H_
