#include "tfring_ops/base/types.h"

#include "tfring_ops/base/half.h"

namespace tfring {

bool CanTravelAs(DataType dtype, DataType wire) {
  const bool is_wide =
      dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
  const bool is_half =
      wire == DataType::kFloat16 || wire == DataType::kBfloat16;
  return dtype == wire || (is_wide && is_half);
}

int64_t SizeInBytes(DataType dtype) {
  switch (dtype) {
#define TFRING_CASE(NAME, TYPE, TEXT) \
  case DataType::NAME:                \
    return sizeof(TYPE);
    TFRING_FOR_EACH_DTYPE(TFRING_CASE)
#undef TFRING_CASE
  }
  return 0;
}

const char* Name(DataType dtype) {
  switch (dtype) {
#define TFRING_CASE(NAME, TYPE, TEXT) \
  case DataType::NAME:                \
    return TEXT;
    TFRING_FOR_EACH_DTYPE(TFRING_CASE)
#undef TFRING_CASE
  }
  return "unknown dtype";
}

const char* Name(ReduceOp op) {
  switch (op) {
#define TFRING_CASE(NAME, TEXT, IDENTITY) \
  case ReduceOp::NAME:                    \
    return TEXT;
    TFRING_FOR_EACH_REDUCTION(TFRING_CASE)
#undef TFRING_CASE
  }
  return "unknown op";
}

const char* Name(AllreduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllreduceAlgorithm::kAuto:
      return "auto";
    case AllreduceAlgorithm::kRing:
      return "ring";
    case AllreduceAlgorithm::kHierarchical:
      return "hierarchical";
    case AllreduceAlgorithm::kRecursiveDoubling:
      return "recursive_doubling";
  }
  return "unknown algorithm";
}

}  // namespace tfring
