// Which feature maps stay where they are, under a budget.
//
// Follows "vDNN: Virtualized Deep Neural Networks for Scalable,
// Memory-Efficient Neural Network Design" (Rhu et al., 2016).  Its dynamic
// policy tries each plan for a whole step; here one step shows the sizes and
// the order for all plans.
#ifndef TFRING_OPS_OFFLOAD_PLANNER_H_
#define TFRING_OPS_OFFLOAD_PLANNER_H_

#include <cstdint>
#include <vector>

namespace tfring {

struct FeatureMap {
  int64_t bytes = 0;
  // The place in the order in which backpropagation uses feature maps; -1 if it
  // does not use this one.
  int back = -1;
};

// Returns, for each feature map, whether it stays.  Those that stay have at
// most `budget_bytes` together, because backpropagation holds all of them when
// it begins.  The first one to be used stays first: it would be away for the
// shortest time, with the least computation to hide its copies.
std::vector<bool> ChooseToKeep(const std::vector<FeatureMap>& feature_maps,
                               int64_t budget_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_PLANNER_H_
