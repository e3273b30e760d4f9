#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

const char* Name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return "allreduce";
    case CollectiveKind::kAllgather:
      return "allgather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
  }
  return "unknown collective";
}

int64_t SizeInBytes(DataType dtype, const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.dims) count *= dim;
  return count * SizeInBytes(dtype);
}

}  // namespace tfring
