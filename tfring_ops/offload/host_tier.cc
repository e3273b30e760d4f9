// The host's memory as a tier.
//
// Note [Blocks are kept]
//
// A step has the same feature maps as the one before it.  Fresh memory costs a
// page fault for every 4 KiB, more than the copy, so blocks are kept for slots
// of the same size, in all no more than were once in use.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {
namespace {

constexpr int64_t kAlignment = 4096;

class HostTier : public Tier {
 public:
  ~HostTier() override {
    for (const auto& [bytes, block] : free_) std::free(block);
  }

  absl::StatusOr<std::unique_ptr<Slot>> Allocate(int64_t bytes) override;

  Use use() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return use_;
  }

 private:
  class HostSlot;

  void GiveBack(void* block, int64_t bytes);

  mutable std::mutex mutex_;  // of all that follows
  Use use_;
  std::multimap<int64_t, void*> free_;  // by their size
};

class HostTier::HostSlot : public Tier::Slot {
 public:
  HostSlot(HostTier* tier, char* block, int64_t bytes)
      : tier_(tier), block_(block), bytes_(bytes) {}
  ~HostSlot() override { tier_->GiveBack(block_, bytes_); }

  absl::Status Write(const char* source, int64_t offset,
                     int64_t bytes) override {
    std::memcpy(block_ + offset, source, bytes);
    return absl::OkStatus();
  }
  absl::Status Read(char* target, int64_t offset, int64_t bytes) override {
    std::memcpy(target, block_ + offset, bytes);
    return absl::OkStatus();
  }

 private:
  HostTier* const tier_;
  char* const block_;
  const int64_t bytes_;  // of the block
};

absl::StatusOr<std::unique_ptr<Tier::Slot>> HostTier::Allocate(int64_t bytes) {
  const int64_t block_bytes =
      (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  void* block = nullptr;
  if (const auto it = free_.find(block_bytes); it != free_.end()) {
    block = it->second;
    free_.erase(it);
  } else {
    // See Note [Blocks are kept].
    while (!free_.empty() &&
           use_.reserved_bytes + block_bytes > use_.peak_bytes) {
      const auto largest = std::prev(free_.end());
      use_.reserved_bytes -= largest->first;
      std::free(largest->second);
      free_.erase(largest);
    }
    block = std::aligned_alloc(kAlignment, block_bytes);
    if (block == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "offload: the host has no memory for a feature map of ", bytes,
          " bytes, with ", use_.in_use_bytes,
          " bytes of them in it. Offload to a disk (tier=\"disk\"), or make "
          "the batch smaller."));
    }
    use_.reserved_bytes += block_bytes;
  }
  use_.in_use_bytes += block_bytes;
  use_.peak_bytes = std::max(use_.peak_bytes, use_.in_use_bytes);
  return std::make_unique<HostSlot>(this, static_cast<char*>(block),
                                    block_bytes);
}

void HostTier::GiveBack(void* block, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  use_.in_use_bytes -= bytes;
  free_.emplace(bytes, block);
}

}  // namespace

std::unique_ptr<Tier> MakeHostTier() { return std::make_unique<HostTier>(); }

}  // namespace tfring
