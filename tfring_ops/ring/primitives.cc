#include "tfring_ops/ring/primitives.h"

#include <algorithm>
#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {

Primitives::Primitives(const RingContext& context, const RingBuffers& buffers)
    : context_(context),
      buffers_(buffers),
      element_bytes_(SizeInBytes(buffers.dtype)),
      segment_count_(
          std::max<int64_t>(1, context.segment_bytes / element_bytes_)),
      prev_(context.order.Before(1)),
      next_(context.order.Before(context.order.size() - 1)) {
  if (!context_.transport.CanPeek(prev_)) {
    status_ = context_.scratch.AtLeast(kSlots * segment_count_ * element_bytes_)
                  .status();
  }
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

absl::Status Primitives::WaitForAll(const std::vector<Request>& sends) {
  for (const Request send : sends) {
    TFRING_RETURN_IF_ERROR(context_.transport.Wait(send));
  }
  return absl::OkStatus();
}

absl::Status Primitives::Run(Range chunk, unsigned moves) {
  TFRING_RETURN_IF_ERROR(status_);
  Transport& transport = context_.transport;
  const int64_t segments = (chunk.count + segment_count_ - 1) / segment_count_;
  const auto segment = [&](int64_t index) {
    const int64_t first = index * segment_count_;
    return Range{chunk.offset + first,
                 std::min(segment_count_, chunk.count - first)};
  };

  // What is to be reduced is read where it arrives, if that can be.
  const bool peeks = (moves & kReduce) && transport.CanPeek(prev_);
  Request receives[kSlots] = {};
  const auto post_receive = [&](int64_t index) {
    if (!(moves & kRecv) || peeks || index >= segments) return;
    const int slot = index % kSlots;
    const Range range = segment(index);
    receives[slot] = transport.StartRecv(
        prev_,
        Bytes(Landing(range, slot, moves), range.count * element_bytes_));
  };

  std::vector<Request> sends;
  for (int64_t index = 0; index < kSlots; ++index) post_receive(index);
  for (int64_t index = 0; index < segments; ++index) {
    const int slot = index % kSlots;
    const Range range = segment(index);
    if (peeks) {
      TFRING_RETURN_IF_ERROR(ComputeWherePeeked(range, moves));
    } else if (moves & kRecv) {
      TFRING_RETURN_IF_ERROR(transport.Wait(receives[slot]));
      if (moves & kReduce) {
        TFRING_RETURN_IF_ERROR(
            Compute(range, Landing(range, slot, moves), moves));
      }
    }
    if (moves & kSend) {
      const std::byte* data =
          (moves & kRecv) ? Output(range.offset) : Input(range.offset);
      sends.push_back(transport.StartSend(
          next_, ConstBytes(data, range.count * element_bytes_)));
    }
    post_receive(index + kSlots);
  }
  // `next` takes the sends of a move in its following move, or, in a move ahead
  // of its turn, in the one after that: by now it is there.
  TFRING_RETURN_IF_ERROR(WaitForAll(std::exchange(earlier_sends_, {})));
  earlier_sends_ = std::exchange(sends_, std::move(sends));
  return absl::OkStatus();
}

// Note [Partial sums go to the output]
// A segment that is to be reduced lands in a slot of the scratch, and the sum
// goes to the output even in a move that does not keep it: an allreduce
// overwrites it later, a reduce-scatter leaves it there.  A sum kept in the
// slot would tie the slot's next receive to the end of its send, and such waits
// close a circle round the ring.
std::byte* Primitives::Landing(Range segment, int slot, unsigned moves) {
  if (!(moves & kReduce)) return Output(segment.offset);
  return context_.scratch.data() + slot * segment_count_ * element_bytes_;
}

absl::Status Primitives::ComputeWherePeeked(Range segment, unsigned moves) {
  const size_t bytes = segment.count * element_bytes_;
  while (segment.count > 0) {
    TFRING_ASSIGN_OR_RETURN(const ConstBytes part,
                            context_.transport.Peek(prev_, bytes));
    const auto count = static_cast<int64_t>(part.size()) / element_bytes_;
    TFRING_RETURN_IF_ERROR(
        Compute({segment.offset, count}, part.data(), moves));
    context_.transport.Release(prev_);
    segment.offset += count;
    segment.count -= count;
  }
  return absl::OkStatus();
}

absl::Status Primitives::Compute(Range range, const std::byte* received,
                                 unsigned moves) {
  const Kernels& kernels = context_.kernels;
  std::byte* sum = Output(range.offset);
  kernels.Reduce(sum, received, Input(range.offset), range.count,
                 buffers_.dtype, buffers_.op);
  if ((moves & kScale) && buffers_.scale != 1.0) {
    kernels.Scale(sum, range.count, buffers_.dtype, buffers_.scale);
  }
  return kernels.Synchronize();
}

const std::byte* Primitives::Input(int64_t element) const {
  return static_cast<const std::byte*>(buffers_.input) +
         element * element_bytes_;
}

std::byte* Primitives::Output(int64_t element) const {
  return static_cast<std::byte*>(buffers_.output) + element * element_bytes_;
}

}  // namespace tfring
