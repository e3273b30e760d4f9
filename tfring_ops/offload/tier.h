// Where feature maps are kept while nobody needs them: memory that is not
// TensorFlow's, or a file.
//
// Thread-safe.
//
// Invariants:
// - What a slot takes is given back when it is destroyed, and by nothing else.
// - The host's memory that is kept for later slots is, with what is in use, no
//   more than was once in use, and one slot.
#ifndef TFRING_OPS_OFFLOAD_TIER_H_
#define TFRING_OPS_OFFLOAD_TIER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tfring {

class Tier {
 public:
  // The place of one tensor.
  class Slot {
   public:
    virtual ~Slot() = default;
    // Copy `bytes` bytes, from `offset` of the slot on.  May be called by
    // several threads, for parts that do not overlap.
    virtual absl::Status Write(const char* source, int64_t offset,
                               int64_t bytes) = 0;
    virtual absl::Status Read(char* target, int64_t offset, int64_t bytes) = 0;
    // Its memory; null if it is in a file.
    virtual char* memory() const { return nullptr; }
  };

  struct Use {
    int64_t in_use_bytes = 0;
    int64_t peak_bytes = 0;      // that were in use at once
    int64_t reserved_bytes = 0;  // in use, and free for later slots
  };

  virtual ~Tier() = default;

  // ResourceExhausted if there is no room.
  // REQUIRES: bytes > 0.  The tier outlives the slot.
  virtual absl::StatusOr<std::unique_ptr<Slot>> Allocate(int64_t bytes) = 0;

  virtual Use use() const = 0;

  // The host's memory if `directory` is empty, else a file in it.  One tier for
  // each directory, which lives for ever.
  static absl::StatusOr<Tier*> Find(const std::string& directory);
  // Memory of the host that GPUs can copy from and to; one tier for all of
  // them, which lives for ever.  `gpu` is one that is in use.
  static Tier* FindPinned(int gpu);
};

// Memory of the host.
std::unique_ptr<Tier> MakeHostTier();
std::unique_ptr<Tier> MakePinnedTier(int gpu);

// A file in `directory` that has no name, so that it is gone with the process,
// however that ends.
absl::StatusOr<std::unique_ptr<Tier>> MakeDiskTier(
    const std::string& directory);

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_TIER_H_
