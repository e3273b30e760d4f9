// One direction between two ranks of a node: messages through a small ring of
// bytes that both see.
//
// One writer and one reader, each on one thread, of one process or of two.
//
// Invariants:
// - Messages arrive whole and in order, each of exactly its own size; a message
//   may be longer than the ring.
// - Nothing here waits.
// - The memory is used again and again, so it stays in cache, but where that
//   costs more than it saves (store_choice.h).
//
// Note [Long messages are read where they are]
// Through the ring a message is copied twice.  If the system lets the reader
// read the writer's memory, a long message is copied once: the ring has its
// address. A shorter one is faster by the ring, as both ranks copy at once. The
// writer's memory is in use until the reader has passed the message.  The
// reader may fail: memory of a device's driver, for example, can be read by its
// own process alone.  It then says so, and the writer puts a copy where the
// reader can read it.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_CHANNEL_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/transport/shared_memory/store_choice.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The memory of a channel.  Memory of zeros is a channel that nobody has used.
struct SharedChannel {
  // The error message of a writer with a failed transport: zero-terminated.
  static constexpr size_t kReasonBytes = 512;

  // Bytes that have passed since the beginning: a position in the ring, modulo
  // its size.  Apart from each other, so that the one who writes one of them
  // does not slow down the reader of another.
  alignas(128) std::atomic<uint64_t> written;  // changed by the writer alone
  alignas(128) std::atomic<uint64_t> read;     // changed by the reader alone
  // 1 + the position of a message that the reader could not read where it is.
  // Set by the reader, and to 0 by the writer when the message has moved.
  std::atomic<uint64_t> refused;
  alignas(128) std::atomic<uint32_t> closed;  // changed by the writer alone
  char reason[kReasonBytes];

  // The size of a channel with a ring of `ring_bytes`.
  static constexpr size_t Bytes(size_t ring_bytes) {
    return sizeof(SharedChannel) + ring_bytes;
  }
  std::byte* ring() { return reinterpret_cast<std::byte*>(this + 1); }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// The first bytes of a message in the ring.
struct MessageHeader {
  uint64_t bytes;
  uint64_t address;  // of the message in the writer's memory; 0: it follows
};

class ChannelWriter {
 public:
  enum class Reader { kReadsRing, kReadsMemory };

  // REQUIRES: `channel` is aligned as its type, and `ring_bytes`, a multiple
  // of kPartAlignment and at least twice that, follow it.
  ChannelWriter(SharedChannel* channel, size_t ring_bytes,
                Reader reader = Reader::kReadsRing)
      : channel_(channel), ring_bytes_(ring_bytes), reader_(reader) {}

  // Copies as much of `message` into the ring as fits, or its address.  Returns
  // true when all of it is in; until then, the next call must be for the same
  // message.
  bool Write(ConstBytes message);
  // Returns true if the last message has to stay as it is: until
  // HasPassed(position()).
  bool is_in_use() const { return in_use_ == written_; }
  // Returns true if the reader has passed the message that ends at `position`.
  bool HasPassed(uint64_t position);

  // Notifies the reader that there will be no more data.
  void Close(const absl::Status& reason);

  // Grows with every byte that is written.
  uint64_t position() const { return written_; }

 private:
  size_t Room() const;
  void WritePart(ConstBytes part);
  // Moves the message that the reader has refused.
  void AnswerRefusal();

  SharedChannel* const channel_;
  const size_t ring_bytes_;
  uint64_t written_ = 0;
  bool in_message_ = false;
  size_t sent_bytes_ = 0;  // of the current message
  uint64_t in_use_ = 0;    // the end of the last message that is read directly
  Reader reader_;          // kReadsRing after a refusal
  std::vector<std::byte> refused_;  // a copy of the refused message
  StoreChoice stores_;
};

// Copies the bytes at `address` of the writer's memory to `target`.  Returns
// false if it cannot.
using ReadMemory = std::function<bool(uint64_t address, Bytes target)>;

class ChannelReader {
 public:
  // REQUIRES: as for a writer.
  ChannelReader(SharedChannel* channel, size_t ring_bytes,
                ReadMemory read_memory = nullptr);

  // Copies the current message out of the ring as far as it has arrived.
  // Returns true when all of it is in `message`; until then, the next call must
  // be for the same.  Internal if the writer has sent a message of another
  // size: then the channel cannot be used any more.  Unavailable if the writer
  // has closed the channel, or ended, while its memory was read.
  absl::StatusOr<bool> Read(Bytes message);

  // The part of the current message, of `message_bytes` in all, that is here;
  // empty if none is.  A multiple of kPartAlignment long, but for the last.
  absl::StatusOr<ConstBytes> Peek(size_t message_bytes);
  // Gives back the part that Peek has given.
  void Release();

  // Why the writer has closed the channel, or OK.
  absl::Status closed() const;

  uint64_t position() const { return read_; }

 private:
  // Returns true if the current message has begun to arrive.
  absl::StatusOr<bool> Begin(size_t message_bytes);
  // Reads the next bytes of the current message where they are.  Returns false
  // if the message has to move first.
  absl::StatusOr<bool> ReadDirectly(Bytes target);
  MessageHeader HeaderAt(uint64_t position) const;
  size_t Available() const;
  void Publish();

  SharedChannel* const channel_;
  const size_t ring_bytes_;
  const ReadMemory read_memory_;  // may be empty
  uint64_t read_ = 0;
  bool in_message_ = false;
  uint64_t header_ = 0;          // the position of the current message
  MessageHeader message_{0, 0};  // the current message
  bool has_refused_ = false;     // it
  size_t missing_bytes_ = 0;     // of it
  size_t part_bytes_ = 0;        // last given by Peek
  std::vector<std::byte> part_;  // of a message that is read where it is
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_SHARED_CHANNEL_H_
