// Note [Blocks are kept]
//
// A step has the same feature maps as the one before it.  Fresh memory costs a
// page fault for every 4 KiB, more than the copy, so blocks are kept for slots
// of the same size, in all at most as many bytes as were once in use.  Pinning
// memory takes longer still, and the GPUs wait meanwhile.
#include "tfring_ops/offload/tier.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfring_ops/kernels/cuda.h"

namespace tfring {
namespace {

constexpr int64_t kAlignment = 4096;

}  // namespace

Tier::Slot::~Slot() { tier_->GiveBack(block_, bytes_); }

std::unique_ptr<Tier> Tier::MakePageable() {
  const auto allocate = [](int64_t bytes) -> absl::StatusOr<void*> {
    void* const block = std::aligned_alloc(kAlignment, bytes);
    if (block != nullptr) return block;
    return absl::ResourceExhaustedError("Make the batch smaller.");
  };
  return std::unique_ptr<Tier>(new Tier({allocate, std::free}));
}

std::unique_ptr<Tier> Tier::MakePinned(int gpu) {
  const auto allocate = [gpu](int64_t bytes) -> absl::StatusOr<void*> {
    absl::StatusOr<void*> block = AllocatePinned(gpu, bytes);
    if (block.ok()) return block;
    return absl::ResourceExhaustedError(
        absl::StrCat("It would have to be pinned, and ",
                     block.status().message(), ". Make the batch smaller."));
  };
  const auto free = [gpu](void* block) { FreePinned(gpu, block); };
  return std::unique_ptr<Tier>(new Tier({allocate, free}));
}

Tier* Tier::Pageable() {
  static Tier* const tier = MakePageable().release();
  return tier;
}

Tier* Tier::Pinned(int gpu) {
  static Tier* const tier = MakePinned(gpu).release();
  return tier;
}

Tier::~Tier() {
  for (const auto& [bytes, block] : free_) source_.free(block);
}

absl::StatusOr<std::unique_ptr<Tier::Slot>> Tier::Allocate(int64_t bytes) {
  const int64_t block_bytes =
      (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  char* block = nullptr;
  if (const auto it = free_.find(block_bytes); it != free_.end()) {
    block = it->second;
    free_.erase(it);
  } else {
    // See Note [Blocks are kept].
    while (!free_.empty() &&
           use_.reserved_bytes + block_bytes > use_.peak_bytes) {
      const auto largest = std::prev(free_.end());
      use_.reserved_bytes -= largest->first;
      source_.free(largest->second);
      free_.erase(largest);
    }
    const absl::StatusOr<void*> allocated = source_.allocate(block_bytes);
    if (!allocated.ok()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("offload: the host has no memory for a feature map of ",
                       bytes, " bytes, with ", use_.in_use_bytes,
                       " bytes of them in it. ", allocated.status().message()));
    }
    block = static_cast<char*>(*allocated);
    use_.reserved_bytes += block_bytes;
  }
  use_.in_use_bytes += block_bytes;
  use_.peak_bytes = std::max(use_.peak_bytes, use_.in_use_bytes);
  return std::unique_ptr<Slot>(new Slot(this, block, block_bytes));
}

Tier::Use Tier::use() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return use_;
}

void Tier::GiveBack(char* block, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  use_.in_use_bytes -= bytes;
  free_.emplace(bytes, block);
}

}  // namespace tfring
