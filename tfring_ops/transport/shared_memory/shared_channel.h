// One direction between two ranks of a node: messages through a small ring of
// bytes that both see.
//
// One writer and one reader, each on one thread, of one process or of two.
//
// Invariants:
// - Messages arrive whole and in order, each of exactly its own size; a message
//   may be longer than the ring.
// - Nothing here waits.
// - The memory is used again and again, so it stays in the cores' common cache.
//   Where that costs more than it saves, see way_choice.h.
// - The writer decides how much of the ring is used.  The header of each
//   message says it, and after a change the writer waits until the reader has
//   read that header.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_CHANNEL_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/transport/shared_memory/way_choice.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The memory of a channel.  Memory of zeros is a channel that nobody has used.
struct SharedChannel {
  // The error message of a writer with a failed transport: zero-terminated.
  static constexpr size_t kReasonBytes = 512;

  // The number of bytes written and read since the beginning: positions in the
  // ring, modulo its size.  Each is in a cache line of its own, so that writing
  // one does not slow down readers of another.
  alignas(128) std::atomic<uint64_t> written;  // changed by the writer alone
  alignas(128) std::atomic<uint64_t> read;     // changed by the reader alone
  alignas(128) std::atomic<uint32_t> closed;   // changed by the writer alone
  char reason[kReasonBytes];

  // The size of a channel with a ring of `ring_bytes`.
  static constexpr size_t Bytes(size_t ring_bytes) {
    return sizeof(SharedChannel) + ring_bytes;
  }
  std::byte* ring() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// Maps the positions of a channel to places in its ring, on one side.
class RingPlaces {
 public:
  explicit RingPlaces(size_t ring_bytes) : used_bytes_(ring_bytes) {}

  // Uses the first `used_bytes` of the ring, from `position` on.
  void Begin(uint64_t position, size_t used_bytes) {
    begin_ = position;
    used_bytes_ = used_bytes;
  }

  uint64_t begin() const { return begin_; }
  size_t used_bytes() const { return used_bytes_; }
  size_t place(uint64_t position) const {
    return (position - begin_) % used_bytes_;
  }
  // Returns the number of bytes from `position` to the end of the used part.
  size_t rest(uint64_t position) const { return used_bytes_ - place(position); }

 private:
  uint64_t begin_ = 0;
  size_t used_bytes_;
};

class ChannelWriter {
 public:
  // REQUIRES: `channel` is aligned as its type, and `ring_bytes`, a multiple
  // of kPartAlignment and at least twice that, follow it.
  ChannelWriter(SharedChannel* channel, size_t ring_bytes)
      : channel_(channel),
        ring_bytes_(ring_bytes),
        places_(ring_bytes),
        choice_(2 * ring_bytes) {}

  // Copies as much of `message` into the ring as fits.  Returns true when all
  // of it is in; until then, the next call must be for the same message.
  // `read` is how far this rank has read the channel in the other direction.
  bool Write(ConstBytes message, uint64_t read = 0);

  // Notifies the reader that no data will follow.
  void Close(const absl::Status& reason);

  // The number of bytes that were written.
  uint64_t position() const { return written_; }

 private:
  void Begin(size_t message_bytes, uint64_t read);
  size_t Room() const;
  void WritePart(ConstBytes part);

  SharedChannel* const channel_;
  const size_t ring_bytes_;
  RingPlaces places_;
  uint64_t written_ = 0;
  bool in_message_ = false;
  size_t sent_bytes_ = 0;   // of the current message
  bool is_chosen_ = false;  // whether its way was chosen
  RingWay way_ = RingWay::kNear;
  WayChoice choice_;
};

class ChannelReader {
 public:
  // REQUIRES: as for ChannelWriter.
  ChannelReader(SharedChannel* channel, size_t ring_bytes)
      : channel_(channel), places_(ring_bytes) {}

  // Copies the current message out of the ring as far as it has arrived.
  // Returns true when all of it is in `message`; until then, the next call must
  // be for the same message.  Internal if the writer has sent a message of
  // another size, after which the channel cannot be used any more.
  absl::StatusOr<bool> Read(Bytes message);

  // Returns the next part of the current message, of `message_bytes` in all,
  // that has arrived; empty if none has.  Its length is a multiple of
  // kPartAlignment, except for the last part.
  absl::StatusOr<ConstBytes> Peek(size_t message_bytes);
  // Releases the part that Peek has returned.
  void Release();

  // Returns why the writer has closed the channel, or OK.
  absl::Status closed() const;

  uint64_t position() const { return read_; }

 private:
  // Returns true if the current message has begun to arrive.
  absl::StatusOr<bool> Begin(size_t message_bytes);
  size_t Available() const;
  void Publish();

  SharedChannel* const channel_;
  RingPlaces places_;
  uint64_t read_ = 0;
  bool in_message_ = false;
  size_t message_bytes_ = 0;  // of the current message
  size_t missing_bytes_ = 0;  // of it
  size_t part_bytes_ = 0;     // last given by Peek
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_CHANNEL_H_
