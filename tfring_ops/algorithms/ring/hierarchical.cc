#include "tfring_ops/algorithms/ring/hierarchical.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>

#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/algorithms/ring/grid_schedule.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/group.h"

namespace tfring {
namespace {

// This rank's part of an allreduce along the axes of a grid.
class GridAllreduce {
 public:
  // `rings` are at least two.
  GridAllreduce(std::vector<const RingContext*> rings,
                const RingBuffers& buffers)
      : rings_(std::move(rings)),
        dtype_(buffers.dtype),
        count_(buffers.count),
        part_count_(PartCount()),
        schedule_(MakeGridSchedule(Shape(),
                                   (count_ + part_count_ - 1) / part_count_)) {
    for (int64_t i = 0; i < schedule_.parts_at_a_time; ++i) {
      AddPrimitives(buffers);
    }
  }

  absl::Status Run() const {
    for (const auto& [time, part, move] : schedule_.turns) {
      TFRING_RETURN_IF_ERROR(Run(part, move));
    }
    for (const auto& of_part : primitives_) {
      for (const auto& primitives : of_part) {
        TFRING_RETURN_IF_ERROR(primitives->Drain());
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<int> Shape() const {
    std::vector<int> shape;
    for (const RingContext* ring : rings_) shape.push_back(ring->order.size());
    return shape;
  }

  int64_t PartCount() const {
    const std::vector<int> shape = Shape();
    const int64_t element_bytes = SizeInBytes(dtype_);
    const int64_t bytes = count_ * element_bytes;
    const int64_t parts = GridParts(shape, bytes, rings_[0]->segment_bytes);
    const int64_t ranks = std::accumulate(shape.begin(), shape.end(),
                                          int64_t{1}, std::multiplies<>());
    const int64_t chunk = (bytes / parts + 1) / element_bytes / ranks + 1;
    return UpToBorder(chunk, dtype_) * ranks;
  }

  // Adds the primitives of a part: one for each axis, then one that reads the
  // input.
  void AddPrimitives(const RingBuffers& buffers) {
    auto& of_part = primitives_.emplace_back();
    RingBuffers of_ring = buffers;
    of_ring.input = buffers.output;
    of_ring.scale = 1.0;
    for (size_t axis = 0; axis < rings_.size(); ++axis) {
      if (axis + 1 == rings_.size()) of_ring.scale = buffers.scale;
      of_part.push_back(std::make_unique<Primitives>(*rings_[axis], of_ring));
    }
    of_ring.input = buffers.input;
    of_ring.scale = 1.0;
    of_part.push_back(std::make_unique<Primitives>(*rings_[0], of_ring));
  }

  absl::Status Run(int64_t part, const GridMove& move) const {
    const int64_t begin = part * part_count_;
    Range range{begin, std::min(part_count_, count_ - begin)};
    for (size_t axis = 0; axis < move.axis; ++axis) {
      range = ChunkOf(range, axis, 0);
    }
    const auto& of_part = primitives_[part % primitives_.size()];
    Primitives& primitives =
        move.reads_input ? *of_part.back() : *of_part[move.axis];
    return (primitives.*move.run)(ChunkOf(range, move.axis, move.before));
  }

  // Returns the chunk of the rank `before` places before this one.
  Range ChunkOf(Range range, size_t axis, int before) const {
    const RingOrder& order = rings_[axis]->order;
    const Range chunk =
        AlignedChunkOf(range.count, order.size(), order.Before(before), dtype_);
    return {range.offset + chunk.offset, chunk.count};
  }

  const std::vector<const RingContext*> rings_;
  const DataType dtype_;
  const int64_t count_, part_count_;
  const GridSchedule schedule_;
  // The primitives of each part that is on its way: part i takes the set i
  // modulo the number of sets.
  std::vector<std::vector<std::unique_ptr<Primitives>>> primitives_;
};

}  // namespace

RingGrid::RingGrid(const RingContext& whole, const std::vector<int>& shape) {
  const RingOrder& order = whole.order;
  int stride = 1;
  for (const int length : shape) {
    const int first = order.place - order.place / stride % length * stride;
    std::vector<int> members;
    for (int i = 0; i < length; ++i) {
      members.push_back(order.ranks[first + i * stride]);
    }
    groups_.push_back(MakeGroupTransport(whole.transport, std::move(members)));
    rings_.push_back(std::unique_ptr<RingContext>(new RingContext{
        *groups_.back(), whole.kernels, whole.segment_bytes, whole.scratch}));
    stride *= length;
  }
}

absl::Status HierarchicalAllreduce(const RingGrid& grid, RingBuffers buffers) {
  std::vector<const RingContext*> rings;
  int n = 1;
  for (const auto& ring : grid.rings()) {
    n *= ring->order.size();
    if (ring->order.size() > 1) rings.push_back(ring.get());
  }
  if (buffers.op == ReduceOp::kAverage) {
    buffers.op = ReduceOp::kSum;
    buffers.scale /= n;
  }
  if (rings.size() < 2) return RingAllreduce(*grid.rings().back(), buffers);
  if (buffers.count == 0) return absl::OkStatus();

  return GridAllreduce(std::move(rings), buffers).Run();
}

}  // namespace tfring
