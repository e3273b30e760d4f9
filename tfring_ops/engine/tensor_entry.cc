#include "tfring_ops/engine/tensor_entry.h"

#include <algorithm>

#include "tfring_ops/algorithms/ring/chunks.h"

namespace tfring {

namespace {

int64_t CountOf(const TensorInfo& tensor) {
  int64_t count = 1;
  for (const int64_t dim : tensor.dims) count *= dim;
  return count;
}

}  // namespace

const char* Name(CollectiveKind kind) {
  switch (kind) {
#define TFRING_NAME(NAME, TEXT) \
  case CollectiveKind::k##NAME: \
    return TEXT;
    TFRING_FOR_EACH_COLLECTIVE(TFRING_NAME)
#undef TFRING_NAME
  }
  return "unknown collective";
}

int64_t SizeInBytes(DataType dtype, const TensorInfo& tensor) {
  return CountOf(tensor) * SizeInBytes(dtype);
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

Range ShareOfRank(const TensorInfo& tensor, int rank, int size) {
  const int64_t count = CountOf(tensor);
  const int64_t multiples = (count + kShareMultiple - 1) / kShareMultiple;
  const int64_t share = (multiples + size - 1) / size * kShareMultiple;
  const int64_t begin = std::min(count, rank * share);
  return {begin, std::min(share, count - begin)};
}

}  // namespace tfring
