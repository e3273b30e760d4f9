// The vocabulary that every module shares: element types, reductions, ranges.
#ifndef TFRING_OPS_BASE_TYPES_H_
#define TFRING_OPS_BASE_TYPES_H_

#include <cstdint>

namespace tfring {

// Every element type: its enumerator, the C++ type of one element (base/half.h
// has the first two), and its name.  CONTRIBUTING.md lists the further files to
// change.
#define TFRING_FOR_EACH_DTYPE(M)     \
  M(kFloat16, Float16, "float16")    \
  M(kBfloat16, Bfloat16, "bfloat16") \
  M(kFloat32, float, "float32")      \
  M(kFloat64, double, "float64")     \
  M(kInt8, int8_t, "int8")           \
  M(kInt16, int16_t, "int16")        \
  M(kInt32, int32_t, "int32")        \
  M(kInt64, int64_t, "int64")        \
  M(kUint8, uint8_t, "uint8")        \
  M(kUint16, uint16_t, "uint16")     \
  M(kUint32, uint32_t, "uint32")     \
  M(kUint64, uint64_t, "uint64")     \
  M(kBool, bool, "bool")

// Every reduction: its enumerator, its name, which the ops' attributes have,
// and the value that changes no result; see engine/collectives/reduction.cc.
// For bool, kSum and kMax are "or", kProduct and kMin are "and".
// kAverage adds like kSum; the ring divides once per element, where an element
// becomes whole, so that every rank gets the same bits.
#define TFRING_FOR_EACH_REDUCTION(M) \
  M(kAverage, "average", Zero)       \
  M(kSum, "sum", Zero)               \
  M(kMin, "min", Highest)            \
  M(kMax, "max", Lowest)             \
  M(kProduct, "product", One)

#define TFRING_ENUMERATOR(NAME, ...) NAME,
enum class DataType : uint8_t { TFRING_FOR_EACH_DTYPE(TFRING_ENUMERATOR) };
enum class ReduceOp : uint8_t { TFRING_FOR_EACH_REDUCTION(TFRING_ENUMERATOR) };
#undef TFRING_ENUMERATOR

#define TFRING_COUNT(...) +1
inline constexpr int kDataTypeCount = TFRING_FOR_EACH_DTYPE(TFRING_COUNT);
inline constexpr int kReductionCount = TFRING_FOR_EACH_REDUCTION(TFRING_COUNT);
#undef TFRING_COUNT

// The algorithm of an allreduce; kAuto leaves the choice to the cost model.
enum class AllreduceAlgorithm : uint8_t {
  kAuto,
  kRing,
  kHierarchical,
  kRecursiveDoubling,
};

// The elements [offset, offset + count) of a buffer.
struct Range {
  int64_t offset = 0;
  int64_t count = 0;
};

// Returns true if floats of `dtype` may be sent and reduced as `wire`: as their
// own type, or float32 and float64 as float16 or bfloat16.
bool CanTravelAs(DataType dtype, DataType wire);

// The size of one element.
int64_t SizeInBytes(DataType dtype);

// The names in error messages, such as "float32" or "average".
const char* Name(DataType dtype);
const char* Name(ReduceOp op);
const char* Name(AllreduceAlgorithm algorithm);

}  // namespace tfring

#endif  // TFRING_OPS_BASE_TYPES_H_
