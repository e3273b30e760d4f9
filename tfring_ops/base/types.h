// The vocabulary that every room shares: element types, reductions, ranges.
#ifndef TFRING_OPS_BASE_TYPES_H_
#define TFRING_OPS_BASE_TYPES_H_

#include <cstdint>

namespace tfring {

enum class DataType : uint8_t {
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kBool,
};

// For bool, kSum and kMax are "or", kProduct and kMin are "and".
// kAverage adds like kSum; the ring divides once per element, where an element
// becomes whole, so that every rank gets the same bits.
enum class ReduceOp : uint8_t { kAverage, kSum, kMin, kMax, kProduct };

// How the ranks do an allreduce; kAuto: as the cost model says.
enum class AllreduceAlgorithm : uint8_t {
  kAuto,
  kRing,
  kHierarchical,
  kRecursiveDoubling,
};

// A run of elements [offset, offset + count) of a buffer.
struct Range {
  int64_t offset = 0;
  int64_t count = 0;
};

// Whether floats of `dtype` may travel, and be reduced, as `wire`: as they are,
// or float32 and float64 as float16 or bfloat16.
bool CanTravelAs(DataType dtype, DataType wire);

// The size of one element.
int64_t SizeInBytes(DataType dtype);

// "float32", "average", ...: the words of error messages.
const char* Name(DataType dtype);
const char* Name(ReduceOp op);
const char* Name(AllreduceAlgorithm algorithm);

}  // namespace tfring

#endif  // TFRING_OPS_BASE_TYPES_H_
