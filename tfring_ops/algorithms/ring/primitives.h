// The six primitives of a ring, named as in NCCL.
//
// Every rank has a previous and a next neighbour (order.h).  A primitive works
// on one chunk of the buffer and receives it from `prev`, sends it to `next`,
// or both.  It is pipelined: the chunk travels as segments, so that one segment
// is on the wire while another is reduced and a third is being sent to `next`.
//
// Invariants:
// - Posting a receive never waits on a send.
// - Scratch is two segments, whatever the size of the buffer, and none where
//   the transport lets a message be read where it arrives.
// - A message is at most a segment, and never spans two pieces.
// - Drain is the last call.  After an error the transport must be aborted
//   before the buffers are touched: operations may still be in flight.
#ifndef TFRING_OPS_ALGORITHMS_RING_PRIMITIVES_H_
#define TFRING_OPS_ALGORITHMS_RING_PRIMITIVES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/order.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The state that all ring algorithms need.
struct RingContext {
  Transport& transport;
  const Kernels& kernels;
  int64_t segment_bytes;  // the same on every rank
  Workspace& scratch;     // allocated by `kernels`, and owned by the caller
  RingOrder order = RingOrder::ByNode(transport);

  // The number of elements in a segment.
  int64_t SegmentCount(DataType dtype) const {
    return std::max<int64_t>(1, segment_bytes / SizeInBytes(dtype));
  }
};

// Consecutive elements in one place of memory.
struct RingPiece {
  const void* input = nullptr;
  void* output = nullptr;  // may be `input`; no other overlap
  int64_t count = 0;
};

// This rank's data.  `count` and `dtype` are the same on every rank, and so are
// the lengths of the pieces.
struct RingBuffers {
  const void* input = nullptr;
  void* output = nullptr;  // may be `input`; no other overlap
  int64_t count = 0;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  // Applied to each element once, at the rank where it becomes whole.
  double scale = 1.0;
  // If there are any pieces, they replace `input` and `output`.  They follow
  // each other with the gaps of Note [Aligned borders], and `count` is
  // CountOf(pieces).  The initializer makes the field optional.
  absl::Span<const RingPiece> pieces = {};  // NOLINT
};

// Returns the number of elements of all pieces and of the gap behind each.
int64_t CountOf(absl::Span<const RingPiece> pieces, DataType dtype);

class Primitives {
 public:
  Primitives(const RingContext& context, const RingBuffers& buffers);

  // The number of bytes that the primitives use at the beginning of the
  // context's scratch.
  static int64_t ScratchBytes(const RingContext& context, DataType dtype);

  // input -> next
  absl::Status Send(Range chunk);
  // prev + input -> next
  absl::Status RecvReduceSend(Range chunk);
  // (prev + input) * scale -> output
  absl::Status RecvReduceCopy(Range chunk);
  // (prev + input) * scale -> output and next
  absl::Status RecvReduceCopySend(Range chunk);
  // prev -> output and next
  absl::Status RecvCopySend(Range chunk);
  // prev -> output
  absl::Status Recv(Range chunk);

  // Returns when every send has left.
  absl::Status Drain();

 private:
  enum Move : unsigned { kRecv = 1, kReduce = 2, kScale = 4, kSend = 8 };
  // Receives in flight at a time.
  static constexpr int kSlots = 2;

  // The elements that one message carries.
  struct Segment {
    const std::byte* input;
    std::byte* output;
    int64_t count;
  };

  absl::Status Run(Range chunk, unsigned moves);
  // Cuts a chunk into segments_.
  void Cut(Range chunk);
  // The memory that a segment is received into.
  std::byte* Landing(const Segment& segment, int slot, unsigned moves);
  // Reduces or copies a segment part by part, as it arrives.  The last part is
  // not released if it is sent on.
  absl::Status ComputeWherePeeked(Segment segment, unsigned moves);
  absl::Status Compute(const Segment& segment, const std::byte* received,
                       unsigned moves);
  absl::Status WaitForAll(const std::vector<OperationId>& sends);

  const RingContext& context_;
  const DataType dtype_;
  const ReduceOp op_;
  const double scale_;
  const int64_t element_bytes_;
  const int64_t segment_count_;  // elements in a segment
  const int prev_, next_;
  std::vector<RingPiece> pieces_;
  std::vector<int64_t> offsets_;   // index of each piece's first element
  std::vector<Segment> segments_;  // of the current primitive
  // The sends of the latest primitive and of the one before it.
  std::vector<OperationId> sends_, earlier_sends_;
  absl::Status status_;  // whether there is scratch
};

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_PRIMITIVES_H_
