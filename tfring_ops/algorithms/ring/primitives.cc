#include "tfring_ops/algorithms/ring/primitives.h"

#include <algorithm>
#include <utility>

#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {

int64_t CountOf(absl::Span<const RingPiece> pieces, DataType dtype) {
  int64_t count = 0;
  for (const RingPiece& piece : pieces) count += UpToBorder(piece.count, dtype);
  return count;
}

Primitives::Primitives(const RingContext& context, const RingBuffers& buffers)
    : context_(context),
      dtype_(buffers.dtype),
      op_(buffers.op),
      scale_(buffers.scale),
      element_bytes_(SizeInBytes(buffers.dtype)),
      segment_count_(context.SegmentCount(buffers.dtype)),
      prev_(context.order.Before(1)),
      next_(context.order.Before(context.order.size() - 1)),
      pieces_(buffers.pieces.begin(), buffers.pieces.end()) {
  if (pieces_.empty()) {
    pieces_.push_back({buffers.input, buffers.output, buffers.count});
  }
  int64_t offset = 0;
  for (const RingPiece& piece : pieces_) {
    offsets_.push_back(offset);
    offset += UpToBorder(piece.count, dtype_);
  }
  if (!context_.transport.CanPeek(prev_)) {
    status_ =
        context_.scratch.AtLeast(ScratchBytes(context, buffers.dtype)).status();
  }
}

int64_t Primitives::ScratchBytes(const RingContext& context, DataType dtype) {
  return kSlots * context.SegmentCount(dtype) * SizeInBytes(dtype);
}

absl::Status Primitives::Send(Range chunk) { return Run(chunk, kSend); }

absl::Status Primitives::RecvReduceSend(Range chunk) {
  return Run(chunk, kRecv | kReduce | kSend);
}

absl::Status Primitives::RecvReduceCopy(Range chunk) {
  return Run(chunk, kRecv | kReduce | kScale);
}

absl::Status Primitives::RecvReduceCopySend(Range chunk) {
  return Run(chunk, kRecv | kReduce | kScale | kSend);
}

absl::Status Primitives::RecvCopySend(Range chunk) {
  return Run(chunk, kRecv | kSend);
}

absl::Status Primitives::Recv(Range chunk) { return Run(chunk, kRecv); }

absl::Status Primitives::Drain() {
  TFRING_RETURN_IF_ERROR(WaitForAll(std::exchange(earlier_sends_, {})));
  return WaitForAll(std::exchange(sends_, {}));
}

absl::Status Primitives::WaitForAll(const std::vector<OperationId>& sends) {
  // Wait for the last send first.  Where each wait is a call of a driver, the
  // earlier sends then need no call of their own.
  for (auto send = sends.rbegin(); send != sends.rend(); ++send) {
    TFRING_RETURN_IF_ERROR(context_.transport.Wait(*send));
  }
  return absl::OkStatus();
}

absl::Status Primitives::Run(Range chunk, unsigned moves) {
  TFRING_RETURN_IF_ERROR(status_);
  Transport& transport = context_.transport;
  Cut(chunk);

  // Data to be reduced is read where it arrives, if the transport can.
  const bool peeks = ((moves & kReduce) && transport.CanPeek(prev_)) ||
                     ((moves & kRecv) && transport.PrefersPeek(prev_));
  OperationId receives[kSlots] = {};
  const auto post_receive = [&](size_t index) {
    if (!(moves & kRecv) || peeks || index >= segments_.size()) return;
    const int slot = static_cast<int>(index % kSlots);
    const Segment& segment = segments_[index];
    receives[slot] = transport.StartRecv(
        prev_,
        Bytes(Landing(segment, slot, moves), segment.count * element_bytes_));
  };

  std::vector<OperationId> sends;
  for (size_t index = 0; index < kSlots; ++index) post_receive(index);
  for (size_t index = 0; index < segments_.size(); ++index) {
    const int slot = static_cast<int>(index % kSlots);
    const Segment& segment = segments_[index];
    if (peeks) {
      TFRING_RETURN_IF_ERROR(ComputeWherePeeked(segment, moves));
    } else if (moves & kRecv) {
      TFRING_RETURN_IF_ERROR(transport.Wait(receives[slot]));
      if (moves & kReduce) {
        TFRING_RETURN_IF_ERROR(
            Compute(segment, Landing(segment, slot, moves), moves));
      }
    }
    if (moves & kSend) {
      const std::byte* data = (moves & kRecv) ? segment.output : segment.input;
      const ConstBytes sent(data, segment.count * element_bytes_);
      sends.push_back(peeks ? transport.ReleaseAndSend(prev_, next_, sent)
                            : transport.StartSend(next_, sent));
    }
    post_receive(index + kSlots);
  }
  // `next` receives the sends of a primitive in its following primitive, or, if
  // that one runs ahead of its turn, in the one after it.  So it has received
  // these by now.
  TFRING_RETURN_IF_ERROR(WaitForAll(std::exchange(earlier_sends_, {})));
  earlier_sends_ = std::exchange(sends_, std::move(sends));
  return absl::OkStatus();
}

void Primitives::Cut(Range chunk) {
  segments_.clear();
  // The last piece that begins at or before the chunk's first element.
  size_t index =
      std::upper_bound(offsets_.begin(), offsets_.end(), chunk.offset) -
      offsets_.begin() - 1;
  while (chunk.count > 0) {
    const RingPiece& piece = pieces_[index];
    const int64_t first = chunk.offset - offsets_[index];
    // The chunk begins in the gap after this piece.
    if (first >= piece.count) {
      if (++index == pieces_.size()) return;
      chunk.count -= offsets_[index] - chunk.offset;
      chunk.offset = offsets_[index];
      continue;
    }
    const int64_t count =
        std::min({segment_count_, chunk.count, piece.count - first});
    const int64_t offset_bytes = first * element_bytes_;
    segments_.push_back(
        {static_cast<const std::byte*>(piece.input) + offset_bytes,
         static_cast<std::byte*>(piece.output) + offset_bytes, count});
    chunk.offset += count;
    chunk.count -= count;
  }
}

// Note [Partial sums go to the output]
// A segment that is to be reduced is received into a slot of the scratch, and
// the sum is written to the output even in a primitive that does not keep it:
// an allreduce overwrites it later; a reduce-scatter leaves it there or has a
// separate place for it (Note [Three places for partial sums]).  A sum kept in
// the slot would tie the slot's next receive to the end of its send, and such
// waits would form a cycle around the ring.
std::byte* Primitives::Landing(const Segment& segment, int slot,
                               unsigned moves) {
  if (!(moves & kReduce)) return segment.output;
  return context_.scratch.data() + slot * segment_count_ * element_bytes_;
}

absl::Status Primitives::ComputeWherePeeked(Segment segment, unsigned moves) {
  const size_t bytes = segment.count * element_bytes_;
  while (segment.count > 0) {
    TFRING_ASSIGN_OR_RETURN(const ConstBytes part,
                            context_.transport.Peek(prev_, bytes));
    const auto count = static_cast<int64_t>(part.size()) / element_bytes_;
    TFRING_RETURN_IF_ERROR(
        Compute({segment.input, segment.output, count}, part.data(), moves));
    segment.input += part.size();
    segment.output += part.size();
    segment.count -= count;
    if (segment.count == 0 && (moves & kSend)) break;  // The send releases it.
    context_.transport.Release(prev_);
  }
  return absl::OkStatus();
}

absl::Status Primitives::Compute(const Segment& segment,
                                 const std::byte* received, unsigned moves) {
  const Kernels& kernels = context_.kernels;
  if (!(moves & kReduce)) {
    kernels.Copy(segment.output, received, segment.count * element_bytes_);
    return kernels.Synchronize();
  }
  kernels.Reduce(segment.output, received, segment.input, segment.count, dtype_,
                 op_);
  if ((moves & kScale) && scale_ != 1.0) {
    kernels.Scale(segment.output, segment.count, dtype_, scale_);
  }
  return kernels.Synchronize();
}

}  // namespace tfring
