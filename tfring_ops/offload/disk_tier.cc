// A file as a tier.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {
namespace {

constexpr int64_t kAlignment = 4096;

std::string LastError() { return std::strerror(errno); }

// The descriptor of a new file in `directory` without a name.
absl::StatusOr<int> OpenWithoutName(const std::string& directory) {
  int descriptor =
      open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    // Some file systems cannot make a file without a name: it loses its own.
    std::string path = absl::StrCat(directory, "/tfring-offload-XXXXXX");
    descriptor = mkostemp(path.data(), O_CLOEXEC);
    if (descriptor >= 0) unlink(path.c_str());
  }
  if (descriptor < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("offload: no file can be made in directory=\"", directory,
                     "\": ", LastError(), "."));
  }
  return descriptor;
}

class DiskTier : public Tier {
 public:
  DiskTier(int descriptor, std::string directory)
      : descriptor_(descriptor), directory_(std::move(directory)) {}
  ~DiskTier() override { close(descriptor_); }

  absl::StatusOr<std::unique_ptr<Slot>> Allocate(int64_t bytes) override;

  Use use() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return use_;
  }

 private:
  class DiskSlot;

  void GiveBack(int64_t position, int64_t bytes);

  const int descriptor_;
  const std::string directory_;
  mutable std::mutex mutex_;  // of all that follows
  Use use_;
  // The free parts of the file, by their positions; no two of them touch.
  std::map<int64_t, int64_t> free_;
};

class DiskTier::DiskSlot : public Tier::Slot {
 public:
  DiskSlot(DiskTier* tier, int64_t position, int64_t bytes)
      : tier_(tier), position_(position), bytes_(bytes) {}
  ~DiskSlot() override { tier_->GiveBack(position_, bytes_); }

  absl::Status Write(const char* source, int64_t offset,
                     int64_t bytes) override {
    while (bytes > 0) {
      const ssize_t written =
          pwrite(tier_->descriptor_, source, bytes, position_ + offset);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("offload: writing a feature map to directory=\"",
                         tier_->directory_, "\" failed: ", LastError(),
                         ". It needs room for all that is moved in a step."));
      }
      source += written;
      offset += written;
      bytes -= written;
    }
    return absl::OkStatus();
  }

  absl::Status Read(char* target, int64_t offset, int64_t bytes) override {
    while (bytes > 0) {
      const ssize_t read =
          pread(tier_->descriptor_, target, bytes, position_ + offset);
      if (read < 0 && errno == EINTR) continue;
      if (read <= 0) {
        return absl::DataLossError(absl::StrCat(
            "offload: reading a feature map back from directory=\"",
            tier_->directory_,
            "\" failed: ", read < 0 ? LastError() : "the file has ended", "."));
      }
      target += read;
      offset += read;
      bytes -= read;
    }
    return absl::OkStatus();
  }

 private:
  DiskTier* const tier_;
  const int64_t position_;
  const int64_t bytes_;
};

absl::StatusOr<std::unique_ptr<Tier::Slot>> DiskTier::Allocate(int64_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t position = use_.reserved_bytes;
  const auto first_fit =
      std::find_if(free_.begin(), free_.end(),
                   [bytes](const auto& part) { return part.second >= bytes; });
  if (first_fit != free_.end()) {
    position = first_fit->first;
    const int64_t left = first_fit->second - bytes;
    free_.erase(first_fit);
    if (left > 0) free_[position + bytes] = left;
  } else {
    // The free part at the end of the file grows with it.
    if (!free_.empty()) {
      const auto last = std::prev(free_.end());
      if (last->first + last->second == use_.reserved_bytes) {
        position = last->first;
        free_.erase(last);
      }
    }
    use_.reserved_bytes = position + bytes;
  }
  use_.in_use_bytes += bytes;
  use_.peak_bytes = std::max(use_.peak_bytes, use_.in_use_bytes);
  return std::make_unique<DiskSlot>(this, position, bytes);
}

void DiskTier::GiveBack(int64_t position, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  use_.in_use_bytes -= bytes;
  auto next = free_.lower_bound(position);
  if (next != free_.end() && position + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == position) {
      before->second += bytes;
      return;
    }
  }
  free_[position] = bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tier>> MakeDiskTier(
    const std::string& directory) {
  TFRING_ASSIGN_OR_RETURN(const int descriptor, OpenWithoutName(directory));
  return std::make_unique<DiskTier>(descriptor, directory);
}

}  // namespace tfring
