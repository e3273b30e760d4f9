#include "tfring_ops/transport/shared_memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// MADV_POPULATE_WRITE of Linux 5.14, which glibc before 2.35 does not define.
constexpr int kPopulateWrite = 23;

absl::Status Failure(absl::string_view call, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat(call, " failed"));
}

}  // namespace

// Unlike touching the pages, this reports a lack of memory as an error.
absl::Status AllocatePages(void* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t in_page = reinterpret_cast<uintptr_t>(begin) % page;
  if (madvise(static_cast<std::byte*>(begin) - in_page, bytes + in_page,
              kPopulateWrite) == 0 ||
      errno == EINVAL) {  // Unknown to the system: see Reserve.
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(
      errno, absl::StrCat("no memory for ", bytes,
                          " bytes that ranks of a node share. Leave the "
                          "machine more, or set TFRING_SHARED_MEMORY=0"));
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(
    size_t bytes) {
  return Reserve(bytes, /*block_bytes=*/bytes, /*used_bytes=*/bytes);
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Reserve(
    size_t bytes, size_t block_bytes, size_t used_bytes) {
  const int descriptor = memfd_create("tfring", MFD_CLOEXEC);
  if (descriptor < 0) return Failure("memfd_create", errno);
  auto segment =
      std::unique_ptr<SharedSegment>(new SharedSegment(descriptor, bytes));
  if (ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return Failure(absl::StrCat("ftruncate to ", bytes, " bytes"), errno);
  }
  TFRING_RETURN_IF_ERROR(segment->Map());
  if (madvise(segment->data_, 1, kPopulateWrite) != 0) {
    block_bytes = used_bytes = bytes;
  }
  // Allocate the pages now, which reports a lack of memory.
  for (size_t begin = 0; begin < bytes; begin += block_bytes) {
    if (const int error = posix_fallocate(descriptor, static_cast<off_t>(begin),
                                          static_cast<off_t>(used_bytes));
        error != 0) {
      return Failure(absl::StrCat("posix_fallocate of ", used_bytes, " bytes"),
                     error);
    }
  }
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
  void* const memory =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return Failure("mmap", errno);
  data_ = static_cast<std::byte*>(memory);
  return absl::OkStatus();
}

}  // namespace tfring
