// Which feature maps stay where they are, under a budget.
//
// After "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient
// Neural Network Design" (Rhu et al., 2016), whose dynamic policy tries plans
// in whole steps.  Here one measured step, in which all were moved, tells what
// any plan would take.
#ifndef TFRING_OPS_OFFLOAD_PLANNER_H_
#define TFRING_OPS_OFFLOAD_PLANNER_H_

#include <cstdint>
#include <vector>

namespace tfring {

// A step in which every feature map was moved.
struct MeasuredStep {
  struct Item {
    int64_t bytes = 0;
    // The numbers of the events after which it was away, and after which its
    // memory was allocated again; -1 if that never came.
    int away = -1;
    int back = -1;
  };
  std::vector<Item> items;
  // Before each event, since the one before it, the most that was allocated;
  // and one more, after the last event.
  std::vector<int64_t> peaks;

  // The most of the whole step.
  int64_t peak() const;
};

// Returns for each item whether it stays, so that no peak is above
// `budget_bytes`.  None does if the measured peak is above it already.
//
// What is needed back first stays first: it would have been away for the
// shortest time, in which its copies hide least behind the computation.
std::vector<bool> ChooseToKeep(const MeasuredStep& step, int64_t budget_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_PLANNER_H_
