// Which feature maps stay where they are, under a budget.
//
// After "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient
// Neural Network Design" (Rhu et al., 2016); its dynamic policy tries plans in
// whole steps.  Here one step shows the sizes and the order for all plans.
#ifndef TFRING_OPS_OFFLOAD_PLANNER_H_
#define TFRING_OPS_OFFLOAD_PLANNER_H_

#include <cstdint>
#include <vector>

namespace tfring {

struct FeatureMap {
  int64_t bytes = 0;
  // Its number in backpropagation's order of use; -1 if it was not used there.
  int back = -1;
};

// Returns for each feature map whether it stays.  Together they have at most
// `budget_bytes`: when backpropagation begins it holds all of them.
//
// The first to be used stays first: it would have been away for the shortest
// time, with the least computation to hide its copies.
std::vector<bool> ChooseToKeep(const std::vector<FeatureMap>& feature_maps,
                               int64_t budget_bytes);

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_PLANNER_H_
