// An entry's memory, as far as TensorFlow's tensors own it.
#ifndef TFRING_OPS_TF_ENTRY_TENSORS_H_
#define TFRING_OPS_TF_ENTRY_TENSORS_H_

#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/runtime/handles.h"

namespace tfring {

class EntryTensors final : public EntryMemory {
 public:
  void Release() override { in_use.clear(); }
  void Keep() override { KeepForever(*this); }

  // Held until the engine is done.
  std::vector<tensorflow::Tensor> in_use;
  // The outputs that callbacks of the engine make, such as allocate_output.
  std::vector<tensorflow::Tensor> gathered;
};

}  // namespace tfring

#endif  // TFRING_OPS_TF_ENTRY_TENSORS_H_
