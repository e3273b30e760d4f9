// Memory that processes of one node share.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_SEGMENT_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The address of a segment for another process, and a mark to recognize it.  A
// plain block of numbers.
struct SegmentAddress {
  int64_t process = 0;  // 0: there is no segment
  int64_t descriptor = 0;
  uint64_t device = 0, inode = 0;
};

// Allocates the pages of the bytes, in a segment or any memory, so that
// touching them cannot fail.  ResourceExhausted if there is no memory.
absl::Status AllocatePages(void* begin, size_t bytes);

// A file in memory, without a name, that belongs to no file system that could
// be full: a small /dev/shm does no harm, and nothing stays behind when its
// processes are killed.
class SharedSegment {
 public:
  // Creates a segment of zeros.  All its memory is allocated: touching it later
  // cannot fail.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(size_t bytes);

  // Like Create, but allocates only the first `used_bytes` of each
  // `block_bytes`.  The rest must not be touched before AllocatePages.  On a
  // system that cannot do that, such as Linux before 5.14, Create allocates
  // everything.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Reserve(
      size_t bytes, size_t block_bytes, size_t used_bytes);

  // REQUIRES: the creator still has its descriptor.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(
      const SegmentAddress& address, size_t bytes);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Aligned to a page.
  std::byte* data() const { return data_; }
  // REQUIRES: this process has created it and not closed its descriptor.
  SegmentAddress address() const;
  // After this call nobody else can open the segment.  Its memory stays.
  void CloseDescriptor();

 private:
  SharedSegment(int descriptor, size_t bytes)
      : descriptor_(descriptor), bytes_(bytes) {}
  absl::Status Map();

  int descriptor_;
  const size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_SEGMENT_H_
