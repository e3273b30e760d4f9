// TensorFlow's element types.
//
// Note [int32 stays on the host]
//
// TensorFlow takes an int32 tensor for a shape or an index, and keeps it in
// host memory wherever its op is; run eagerly, it copies the `buf` of a Start
// between the Start and the Done, while the engine writes to it.  So there are
// no kernels for int32 on GPUs, and TensorFlow places these ops on the CPU.
#ifndef TFRING_OPS_TF_DTYPES_H_
#define TFRING_OPS_TF_DTYPES_H_

#include <cstdint>

#include "tensorflow/core/framework/numeric_types.h"
#include "tensorflow/core/framework/types.h"

// Calls `M` with the enumerator of DataType, TensorFlow's C++ type and its name
// in an op's attributes, for every floating-point type.
#define TFRING_FOR_EACH_FLOAT(M)                 \
  M(kFloat16, Eigen::half, "half")               \
  M(kBfloat16, tensorflow::bfloat16, "bfloat16") \
  M(kFloat32, float, "float")                    \
  M(kFloat64, double, "double")

// Calls `M` as above for every type that TensorFlow keeps in a GPU's memory.
#define TFRING_FOR_EACH_DTYPE_ON_GPU(M) \
  TFRING_FOR_EACH_FLOAT(M)              \
  M(kInt8, int8_t, "int8")              \
  M(kInt16, int16_t, "int16")           \
  M(kInt64, int64_t, "int64")           \
  M(kUint8, uint8_t, "uint8")           \
  M(kUint16, uint16_t, "uint16")        \
  M(kUint32, uint32_t, "uint32")        \
  M(kUint64, uint64_t, "uint64")        \
  M(kBool, bool, "bool")

// Calls `M` as above for every type.
#define TFRING_FOR_EACH_TENSORFLOW_DTYPE(M) \
  TFRING_FOR_EACH_DTYPE_ON_GPU(M)           \
  M(kInt32, int32_t, "int32")

namespace tfring {

// An entry of a list of types, for the constraints of kernels.
#define TFRING_TYPE(DTYPE, TYPE, NAME) tensorflow::DataTypeToEnum<TYPE>::value,
inline constexpr tensorflow::DataType kFloats[] = {
    TFRING_FOR_EACH_FLOAT(TFRING_TYPE)};
inline constexpr tensorflow::DataType kTypesOnGpu[] = {
    TFRING_FOR_EACH_DTYPE_ON_GPU(TFRING_TYPE)};

}  // namespace tfring

#endif  // TFRING_OPS_TF_DTYPES_H_
