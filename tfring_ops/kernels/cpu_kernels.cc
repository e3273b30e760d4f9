// The kernels on host memory.
//
// What kernels.h leaves open:
// - The minimum and maximum of a NaN and anything is NaN, as in np.minimum and
//   np.maximum.
// - A byte of a bool is true unless it is zero; the result is 0 or 1.
// - Scale multiplies every dtype as double and rounds to the dtype (float16 and
//   bfloat16 by way of float): a sum of equal numbers that was exact averages
//   to that number.  An integer that would leave its range stops at the end of
//   it, and NaN becomes 0.  A factor of exactly 1 changes nothing, not even an
//   int64 that no double can hold.
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

// One byte that may hold anything: to read a `bool` that is neither 0 nor 1 is
// undefined.
class Bool {
 public:
  Bool() = default;
  explicit Bool(bool value) : byte_(value ? 1 : 0) {}
  explicit operator bool() const { return byte_ != 0; }

 private:
  uint8_t byte_;
};
static_assert(sizeof(Bool) == 1 && std::is_trivial_v<Bool>);

template <typename T>
struct Tag {
  using type = T;
};

// Calls visit(Tag<T>()) with the type of one element in memory.  Without a
// `default:`, a new DataType fails to compile here (-Werror=switch).
template <typename Visitor>
void Dispatch(DataType dtype, const Visitor& visit) {
  switch (dtype) {
    case DataType::kFloat16:
      return visit(Tag<Float16>());
    case DataType::kBfloat16:
      return visit(Tag<Bfloat16>());
    case DataType::kFloat32:
      return visit(Tag<float>());
    case DataType::kFloat64:
      return visit(Tag<double>());
    case DataType::kInt8:
      return visit(Tag<int8_t>());
    case DataType::kInt16:
      return visit(Tag<int16_t>());
    case DataType::kInt32:
      return visit(Tag<int32_t>());
    case DataType::kInt64:
      return visit(Tag<int64_t>());
    case DataType::kUint8:
      return visit(Tag<uint8_t>());
    case DataType::kUint16:
      return visit(Tag<uint16_t>());
    case DataType::kUint32:
      return visit(Tag<uint32_t>());
    case DataType::kUint64:
      return visit(Tag<uint64_t>());
    case DataType::kBool:
      return visit(Tag<Bool>());
  }
  assert(false && "not a DataType");
}

// The type that an element is computed in.
template <typename T>
struct ComputeType : Tag<T> {};
template <>
struct ComputeType<Float16> : Tag<float> {};
template <>
struct ComputeType<Bfloat16> : Tag<float> {};
template <>
struct ComputeType<Bool> : Tag<bool> {};
template <typename T>
using Compute = typename ComputeType<T>::type;

// The operations take and return compute types.
//
// Integers wrap round as unsigned numbers of at least 32 bits: signed overflow
// is undefined, and C++ would multiply two uint16_t as int.  For bool, the
// conversion back makes + "or" and * "and".
template <typename T>
using Unsigned =
    std::conditional_t<sizeof(T) <= sizeof(uint32_t), uint32_t, uint64_t>;
template <typename T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, Unsigned<T>, T>;

struct Add {
  template <typename T>
  static T Apply(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) + Wrapping<T>(b));
  }
};

struct Multiply {
  template <typename T>
  static T Apply(T a, T b) {
    return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b));
  }
};

template <typename T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

// `|` rather than `||`, which would be a branch.
struct Minimum {
  template <typename T>
  static T Apply(T a, T b) {
    return ((a < b) | IsNan(a)) ? a : b;
  }
};

struct Maximum {
  template <typename T>
  static T Apply(T a, T b) {
    return ((a > b) | IsNan(a)) ? a : b;
  }
};

// Calls visit(operation).
template <typename Visitor>
void Dispatch(ReduceOp op, const Visitor& visit) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return visit(Add());
    case ReduceOp::kMin:
      return visit(Minimum());
    case ReduceOp::kMax:
      return visit(Maximum());
    case ReduceOp::kProduct:
      return visit(Multiply());
  }
  assert(false && "not a ReduceOp");
}

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    // As doubles: the lowest value is exact; the highest of 64 bits is not, but
    // one more than it is.
    constexpr auto kLowest = static_cast<double>(Limits::lowest());
    constexpr double kEnd =
        2.0 * static_cast<double>(uint64_t{1} << (Limits::digits - 1));
    // 49 * (1.0 / 49) is a little less than 1, and means 1.
    constexpr double kRounding = 2 * std::numeric_limits<double>::epsilon();
    const double nearest = std::nearbyint(value);
    if (std::abs(value - nearest) <= kRounding * std::abs(value)) {
      value = nearest;
    }
    if (value >= kEnd) return Limits::max();
    if (value <= kLowest) return Limits::lowest();
    return IsNan(value) ? 0 : static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<Compute<T>>(value));
  }
}

// Calls body(i) for every i in [0, count), many at a time: an element that one
// call writes, no other call may touch.
//
// At -O2, g++ vectorises only loops whose count it knows, hence the blocks, and
// only those that need no check for overlap at run time, hence the pragma.
template <typename Body>
void ForEach(int64_t count, const Body& body) {
  constexpr int64_t kBlock = 64;
  int64_t begin = 0;
  for (; begin + kBlock <= count; begin += kBlock) {
#pragma GCC ivdep  // NOLINT(clang-diagnostic-unknown-pragmas)
    for (int64_t i = 0; i < kBlock; ++i) body(begin + i);
  }
  for (; begin < count; ++begin) body(begin);
}

class CpuKernelsImpl final : public Kernels {
 public:
  void Reduce(void* dst, const void* a, const void* b, int64_t count,
              DataType dtype, ReduceOp op) const override {
    Dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      Dispatch(op, [&](auto operation) {
        ReduceElements(static_cast<T*>(dst), static_cast<const T*>(a),
                       static_cast<const T*>(b), count, operation);
      });
    });
  }

  void Scale(void* data, int64_t count, DataType dtype,
             double factor) const override {
    if (factor == 1.0) return;
    Dispatch(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (!std::is_same_v<T, Bool>) {
        ScaleElements(static_cast<T*>(data), count, factor);
      }
    });
  }

  void Copy(void* dst, const void* src, int64_t bytes) const override {
    // memcpy may be given neither null nor the same place twice.
    if (bytes == 0 || dst == src) return;
    std::memcpy(dst, src, static_cast<size_t>(bytes));
  }

  void Synchronize() const override {}

 private:
  template <typename T, typename Operation>
  static void ReduceElements(T* dst, const T* a, const T* b, int64_t count,
                             Operation operation) {
    ForEach(count, [=](int64_t i) {
      const auto x = static_cast<Compute<T>>(a[i]);
      const auto y = static_cast<Compute<T>>(b[i]);
      dst[i] = static_cast<T>(operation.Apply(x, y));
    });
  }

  template <typename T>
  static void ScaleElements(T* data, int64_t count, double factor) {
    ForEach(count, [=](int64_t i) {
      const auto x = static_cast<double>(static_cast<Compute<T>>(data[i]));
      data[i] = FromDouble<T>(x * factor);
    });
  }
};

}  // namespace

const Kernels& CpuKernels() {
  static const auto* const kernels = new CpuKernelsImpl;
  return *kernels;
}

}  // namespace tfring
