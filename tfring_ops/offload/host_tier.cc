// The host's memory as a tier.
//
// Note [Blocks are kept]
//
// A step has the same feature maps as the one before it.  Fresh memory costs a
// page fault for every 4 KiB, more than the copy, so blocks are kept for slots
// of the same size, in all no more than were once in use.  To pin memory takes
// longer still, and the GPUs wait meanwhile.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {
namespace {

constexpr int64_t kAlignment = 4096;

// Where blocks come from.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // The error says what to do.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* block) = 0;
};

class PageableBlocks : public BlockSource {
 public:
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    void* const block = std::aligned_alloc(kAlignment, bytes);
    if (block != nullptr) return block;
    return absl::ResourceExhaustedError(
        "Offload to a disk (tier=\"disk\"), or make the batch smaller.");
  }
  void Free(void* block) override { std::free(block); }
};

class PinnedBlocks : public BlockSource {
 public:
  explicit PinnedBlocks(int gpu) : gpu_(gpu) {}

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    absl::StatusOr<void*> block = AllocatePinned(gpu_, bytes);
    if (block.ok()) return block;
    return absl::ResourceExhaustedError(
        absl::StrCat("It would have to be pinned, and ",
                     block.status().message(), ". Make the batch smaller."));
  }
  void Free(void* block) override { FreePinned(gpu_, block); }

 private:
  const int gpu_;
};

class HostTier : public Tier {
 public:
  explicit HostTier(std::unique_ptr<BlockSource> source)
      : source_(std::move(source)) {}
  ~HostTier() override {
    for (const auto& [bytes, block] : free_) source_->Free(block);
  }

  absl::StatusOr<std::unique_ptr<Slot>> Allocate(int64_t bytes) override;

  Use use() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return use_;
  }

 private:
  class HostSlot;

  void GiveBack(void* block, int64_t bytes);

  const std::unique_ptr<BlockSource> source_;
  mutable std::mutex mutex_;  // of all that follows, and of the source
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
  char* memory() const override { return block_; }

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
      source_->Free(largest->second);
      free_.erase(largest);
    }
    const absl::StatusOr<void*> allocated = source_->Allocate(block_bytes);
    if (!allocated.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("offload: the host has no memory for a feature map of ",
                       bytes, " bytes, with ", use_.in_use_bytes,
                       " bytes of them in it. ", allocated.status().message()));
    }
    block = *allocated;
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

std::unique_ptr<Tier> MakeHostTier() {
  return std::make_unique<HostTier>(std::make_unique<PageableBlocks>());
}

std::unique_ptr<Tier> MakePinnedTier(int gpu) {
  return std::make_unique<HostTier>(std::make_unique<PinnedBlocks>(gpu));
}

}  // namespace tfring
