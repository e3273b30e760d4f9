// Point-to-point messages between the ranks of one process set: the algorithms'
// only interface to the outside world.
//
// Not thread-safe: one thread makes every call.
//
// Invariants:
// - Messages from one peer arrive in the order of their starts.
// - A receive takes a message of exactly its own size; zero bytes are legal.
// - Posting a receive never waits on a send.
// - Nothing aborts the process: a failure is a Status, and after the first
//   error every later call on any rank fails with it too.
// - Waiting never burns a core that a computation could use for long.
#ifndef TFRING_OPS_TRANSPORT_TRANSPORT_H_
#define TFRING_OPS_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tfring {

using Bytes = absl::Span<std::byte>;
using ConstBytes = absl::Span<const std::byte>;

// Returns the bytes of `data`, which is trivially copyable.
template <typename T>
Bytes BytesOf(T& data) {
  static_assert(std::is_trivially_copyable_v<T>);
  return Bytes(reinterpret_cast<std::byte*>(&data), sizeof(data));
}
template <typename T>
ConstBytes BytesOf(const T& data) {
  static_assert(std::is_trivially_copyable_v<T>);
  return ConstBytes(reinterpret_cast<const std::byte*>(&data), sizeof(data));
}

// An operation in flight.  Copyable; waited for at most once.
using OperationId = uint64_t;
inline constexpr OperationId kNoOperation = 0;

// The purpose of a message that is counted: control, or a kind that the owner
// numbers from 1 on.
using MessageKind = uint8_t;
inline constexpr MessageKind kControlMessages = 0;
inline constexpr int kMostMessageKinds = 16;

// A multiple of the size of every dtype.
inline constexpr size_t kPartAlignment = 64;

// GPUs export whole pages of this size: a smaller piece of memory may share its
// page with private data.
inline constexpr int64_t kExportedBytes = 2 << 20;

// DeadlineExceeded: `peer`'s data has not moved for `seconds`.  The waiting
// caller adds the purpose.
absl::Status TimedOut(int peer, double seconds);
// Returns true if `status` was made by TimedOut on this rank.
bool IsTimeout(const absl::Status& status);

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // The machine of a rank, which may be this one.  On every rank, the same
  // number means the same machine; the numbers mean nothing else.
  virtual int node_of(int peer) const = 0;

  // REQUIRES: `data` stays alive and unchanged until the operation is complete.
  // Errors at the start are reported by Test or Wait.
  virtual OperationId StartSend(int peer, ConstBytes data) = 0;

  // REQUIRES: `data` stays alive and untouched until the operation is complete.
  virtual OperationId StartRecv(int peer, Bytes data) = 0;

  // Returns true if the operation is complete.  After true, or an error, the
  // operation no longer exists.  kNoOperation is always complete.
  virtual absl::StatusOr<bool> Test(OperationId request) = 0;

  // Returns when the operation is complete, and no longer exists.  TimedOut
  // after the transport's timeout, if it has one.
  virtual absl::Status Wait(OperationId request) = 0;

  // Calls `attend` from time to time during a Wait or a Peek, on the thread
  // that waits.  An error of `attend` ends that wait, after which only Abort
  // may be called.  A transport around another one may pass `attend` on.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it.
  virtual void SetAttendant(std::function<absl::Status()> /*attend*/) {}

  // Returns true if messages from `peer` may be read where they arrive, by Peek
  // and Release in place of StartRecv.
  virtual bool CanPeek(int /*peer*/) const { return false; }

  // Waits for the next part of the message of `message_bytes` (not 0) from
  // `peer`.  A part begins where the one before it ended and, except for the
  // last, is a multiple of kPartAlignment long.  It stays until Release.
  // REQUIRES: CanPeek(peer); no receive from `peer` is in flight.
  virtual absl::StatusOr<ConstBytes> Peek(int /*peer*/,
                                          size_t /*message_bytes*/) {
    return absl::UnimplementedError("this transport cannot peek");
  }
  // Releases the part that the last Peek has returned.
  virtual void Release(int /*peer*/) {}
  // Releases the part from `from`, and then sends `data`, which was computed
  // from it and earlier parts.  One call costs less than two.
  virtual OperationId ReleaseAndSend(int from, int to, ConstBytes data) {
    Release(from);
    return StartSend(to, data);
  }
  // Returns true if Peek is faster than StartRecv even for a message that is
  // only copied.
  virtual bool PrefersPeek(int /*peer*/) const { return false; }

  // Declares the memory in which most data to be sent will be, so that peers
  // may read it there.  It replaces any earlier declaration; empty `memory`
  // means none.  When the call returns, no peer reads the earlier memory.
  // Collective, while nothing is in flight.
  // REQUIRES: `memory` is all of an allocation by Kernels::Allocate, a multiple
  // of kExportedBytes, and is kept until the next call or the transport's end.
  virtual absl::Status Export(Bytes /*memory*/) { return absl::OkStatus(); }

  // Counts this rank's messages from now on as `kind`, and returns the previous
  // kind.  Only a transport of counting.h counts.
  virtual MessageKind CountAs(MessageKind /*kind*/) { return kControlMessages; }
  // The bytes of all messages that were not counted as control messages.
  virtual int64_t counted_bytes() const { return 0; }

  // Returns true if StartSend to `peer`, and StartRecv from it, may be given
  // memory of a GPU.
  virtual bool TakesDeviceMemory(int peer) const = 0;

  // Makes progress on the operations in flight while the owner waits for
  // something else.  Returns an error if the transport has failed.
  virtual absl::Status Progress() = 0;

  // Fails every operation, in flight or later, on this rank and on every peer,
  // with `reason`.  Buffers in flight are free again when it returns, unless
  // HasAbandoned.  The first call counts.
  virtual void Abort(const absl::Status& reason) = 0;

  // Returns true if Abort could not end all operations: a peer has stopped in
  // the middle of one, and may continue at any time.  Memory that was in flight
  // must then never be freed.
  virtual bool HasAbandoned() const { return false; }
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_TRANSPORT_H_
