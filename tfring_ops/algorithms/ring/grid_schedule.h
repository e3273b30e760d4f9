// The moves of a rank in an allreduce along the axes of a grid, and the order
// in which it makes them.
#ifndef TFRING_OPS_ALGORITHMS_RING_GRID_SCHEDULE_H_
#define TFRING_OPS_ALGORITHMS_RING_GRID_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tfring_ops/algorithms/ring/primitives.h"

namespace tfring {

// A primitive on a chunk of a part of the buffer.
struct GridMove {
  bool receives() const { return run != &Primitives::Send; }
  bool reduces() const {
    return run == &Primitives::RecvReduceSend ||
           run == &Primitives::RecvReduceCopy ||
           run == &Primitives::RecvReduceCopySend;
  }
  bool sends() const {
    return run != &Primitives::RecvReduceCopy && run != &Primitives::Recv;
  }

  absl::Status (Primitives::*run)(Range);
  size_t axis;
  int before;  // The chunk is that of the rank this many places before.
  bool reads_input;
};

// Returns the number of parts of a buffer: see Note [Parts of a grid].
int64_t GridParts(absl::Span<const int> shape, int64_t bytes,
                  int64_t segment_bytes);

struct GridSchedule {
  struct Turn {
    int64_t time, part;
    GridMove move;
  };

  // All moves of all parts in their order, which is the same on all ranks.
  std::vector<Turn> turns;
  // The number of parts that are on their way at the same time.
  int64_t parts_at_a_time;
};

// `shape` has at least two axes, with at least two ranks along each.
GridSchedule MakeGridSchedule(absl::Span<const int> shape, int64_t parts);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_RING_GRID_SCHEDULE_H_
