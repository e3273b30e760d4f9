#include "tfring_ops/engine/tensor_entry.h"

#include "tfring_ops/algorithms/ring/chunks.h"

namespace tfring {

int64_t SizeInBytes(DataType dtype, const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.dims) count *= dim;
  return count * SizeInBytes(dtype);
}

int64_t SizeInBytes(const CollectiveRequest& request) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : request.tensors) {
    bytes += SizeInBytes(WireType(request), tensor);
  }
  return bytes;
}

Range RowsOfRank(const TensorInfo& tensor, int rank, int size) {
  return ChunkOf(tensor.dims[0], size, rank);
}

}  // namespace tfring
