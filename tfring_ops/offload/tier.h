// Memory of the host that is not TensorFlow's, for feature maps that nothing
// needs meanwhile.
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
    const int64_t bytes_;  // of the block
  };

  struct Use {
    int64_t in_use_bytes = 0;
    int64_t peak_bytes = 0;      // that were in use at once
    int64_t reserved_bytes = 0;  // in use, and free for later slots
  };

  // Memory from the C library; and memory that GPUs can copy from and to, by
  // the driver of `gpu`.
  static std::unique_ptr<Tier> MakePageable();
  static std::unique_ptr<Tier> MakePinned(int gpu);
  // One of each for all plans, which lives for ever.  `gpu` is one that is in
  // use.
  static Tier* Pageable();
  static Tier* Pinned(int gpu);

  ~Tier();

  // ResourceExhausted if there is no room.
  // REQUIRES: bytes > 0.  The tier outlives the slot.
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
  std::multimap<int64_t, char*> free_;  // by their size
};

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_TIER_H_
