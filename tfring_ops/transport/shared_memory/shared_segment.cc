#include "tfring_ops/transport/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

absl::Status Failure(absl::string_view call, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(call, " failed"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(
    size_t bytes) {
  const int descriptor = memfd_create("tfring", MFD_CLOEXEC);
  if (descriptor < 0) return Failure("memfd_create", errno);
  auto segment =
      std::unique_ptr<SharedSegment>(new SharedSegment(descriptor, bytes));
  // Takes the memory now, and says if there is none.
  if (const int error =
          posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
      error != 0) {
    return Failure(absl::StrCat("posix_fallocate of ", bytes, " bytes"), error);
  }
  TFRING_RETURN_IF_ERROR(segment->Map());
  return segment;
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(
    const SegmentAddress& address, size_t bytes) {
  const std::string path =
      absl::StrCat("/proc/", address.process, "/fd/", address.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return Failure(absl::StrCat("opening ", path), errno);
  auto segment =
      std::unique_ptr<SharedSegment>(new SharedSegment(descriptor, bytes));
  // In another container the number may be another process's.
  const SegmentAddress found = segment->address();
  if (found.device != address.device || found.inode != address.inode) {
    return absl::NotFoundError(
        absl::StrCat(path, " is not the memory that was meant"));
  }
  TFRING_RETURN_IF_ERROR(segment->Map());
  segment->CloseDescriptor();
  return segment;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
  CloseDescriptor();
}

SegmentAddress SharedSegment::address() const {
  struct stat file{};
  fstat(descriptor_, &file);
  return {getpid(), descriptor_, file.st_dev, file.st_ino};
}

void SharedSegment::CloseDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

absl::Status SharedSegment::Map() {
  void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_POPULATE, descriptor_, 0);
  if (memory == MAP_FAILED) return Failure("mmap", errno);
  data_ = static_cast<std::byte*>(memory);
  return absl::OkStatus();
}

}  // namespace tfring
