// Memory that is kept from call to call, where the kernels work.
//
// Not thread-safe.
#ifndef TFRING_OPS_KERNELS_WORKSPACE_H_
#define TFRING_OPS_KERNELS_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

class Workspace {
 public:
  // REQUIRES: `kernels` outlives the workspace.
  explicit Workspace(const Kernels& kernels) : kernels_(kernels) {}
  ~Workspace() { Clear(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Returns memory of at least `bytes`, which may be device memory.  The
  // contents are lost if the workspace has to grow.
  absl::StatusOr<std::byte*> AtLeast(int64_t bytes) {
    if (bytes <= bytes_) return data_;
    Clear();
    const absl::StatusOr<void*> memory = kernels_.Allocate(bytes);
    if (!memory.ok()) return memory.status();
    data_ = static_cast<std::byte*>(*memory);
    bytes_ = bytes;
    return data_;
  }

  std::byte* data() const { return data_; }  // null at first
  int64_t bytes() const { return bytes_; }

  void Clear() {
    if (data_ != nullptr) kernels_.Free(data_);
    data_ = nullptr;
    bytes_ = 0;
  }

  // Never frees the memory from now on, because somebody may still use it.
  void Keep() {
    KeepForever(std::exchange(data_, nullptr));
    bytes_ = 0;
  }

 private:
  const Kernels& kernels_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_WORKSPACE_H_
