// Values of every dtype and the expected results of their reduction, computed
// with plain C++ arithmetic and without the kernels.
#ifndef TESTS_CPP_ELEMENTS_H_
#define TESTS_CPP_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"

namespace tfring {

#define TFRING_TYPE(enumerator, Type, name) DataType::enumerator,
inline constexpr DataType kDataTypes[] = {TFRING_FOR_EACH_DTYPE(TFRING_TYPE)};
#undef TFRING_TYPE
inline constexpr DataType kFloatTypes[] = {
    DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
    DataType::kFloat64};
inline constexpr ReduceOp kReduceOps[] = {ReduceOp::kAverage, ReduceOp::kSum,
                                          ReduceOp::kMin, ReduceOp::kMax,
                                          ReduceOp::kProduct};

// The elements of a tensor, of a dtype known at run time.
using Elements = std::vector<std::byte>;

// Returns visit(T()) with the type of one element.
template <typename Visitor>
auto VisitType(DataType dtype, const Visitor& visit) {
  switch (dtype) {
#define TFRING_VISIT(enumerator, Type, name) \
  case DataType::enumerator:                 \
    return visit(Type());
    TFRING_FOR_EACH_DTYPE(TFRING_VISIT)
#undef TFRING_VISIT
  }
  return visit(bool());
}

// The same on every machine and in every run, unlike <random>'s distributions.
inline uint64_t RandomBits(uint64_t rank, uint64_t index) {
  // splitmix64's finalizer, http://xorshift.di.unimi.it/splitmix64.c
  uint64_t bits = (index * 64 + rank + 1) * 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// Element `index` of rank `rank`'s input.  Integers are random bits, so that
// sums wrap round.  Floating-point numbers are such that the order of the
// additions or multiplications of 8 ranks makes no difference in any dtype.
template <typename T>
T InputElement(ReduceOp op, int rank, int64_t index) {
  const uint64_t bits = RandomBits(rank, index);
  if constexpr (std::is_same_v<T, bool>) {
    // Mostly false, then mostly true: "or" and "and" of 8 ranks give both.
    return (bits % 8 == 0) != (index % 2 == 0);
  } else if constexpr (std::is_integral_v<T>) {
    // An average is computed as double, which does not hold every int64.
    using Narrow = std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>;
    return op == ReduceOp::kAverage ? static_cast<T>(static_cast<Narrow>(bits))
                                    : static_cast<T>(bits);
  } else {
    constexpr float kFactors[] = {1, -1, 2, 0.5};
    return op == ReduceOp::kProduct
               ? T(kFactors[bits % 4])
               : T(static_cast<float>(static_cast<int>(bits % 17) - 8));
  }
}

// A number in [-1, 1) of full precision: here the order does matter.
template <typename T>
T RandomElement(int rank, int64_t index) {
  const auto bits = static_cast<int64_t>(RandomBits(rank, index));
  return T(static_cast<float>(static_cast<double>(bits) * 0x1p-63));
}

template <typename T>
T Reduced(ReduceOp op, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ReduceOp::kMin || op == ReduceOp::kProduct ? a && b : a || b;
  } else {
    // The low bits of sums and products do not depend on the high ones; and
    // floating-point inputs are exact in double.
    using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
    using Number =
        std::conditional_t<std::is_arithmetic_v<T>, T, float>;  // half as float
    const auto x = static_cast<Number>(a);
    const auto y = static_cast<Number>(b);
    const auto narrow = [](Wide wide) { return T(static_cast<Number>(wide)); };
    switch (op) {
      case ReduceOp::kAverage:
      case ReduceOp::kSum:
        return narrow(static_cast<Wide>(x) + static_cast<Wide>(y));
      case ReduceOp::kMin:
        return y < x ? b : a;
      case ReduceOp::kMax:
        return x < y ? b : a;
      case ReduceOp::kProduct:
        return narrow(static_cast<Wide>(x) * static_cast<Wide>(y));
    }
    return a;
  }
}

template <typename T>
T Scaled(T value, double factor) {
  if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return factor == 1.0 ? value : static_cast<T>(value * factor);
  } else {
    return T(static_cast<float>(static_cast<float>(value) * factor));
  }
}

template <typename T>
T Average(T sum, int size) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return static_cast<T>(sum / static_cast<T>(size));
  } else {
    return Scaled(sum, 1.0 / size);
  }
}

// `count` elements, the i-th being element(T(), i).
template <typename Element>
Elements MakeElements(DataType dtype, int64_t count, const Element& element) {
  Elements elements(count * SizeInBytes(dtype));
  VisitType(dtype, [&](auto type) {
    using T = decltype(type);
    T* const typed = reinterpret_cast<T*>(elements.data());
    for (int64_t i = 0; i < count; ++i) typed[i] = element(type, i);
  });
  return elements;
}

// Rank `rank`'s input to an allreduce.
inline Elements AllreduceInput(DataType dtype, ReduceOp op, int64_t count,
                               int rank) {
  return MakeElements(dtype, count, [&](auto type, int64_t i) {
    return InputElement<decltype(type)>(op, rank, i);
  });
}

// The result that an allreduce of AllreduceInput over `size` ranks must have.
inline Elements AllreduceOutput(DataType dtype, ReduceOp op, int64_t count,
                                int size, double postscale = 1.0) {
  return MakeElements(dtype, count, [&](auto type, int64_t i) {
    using T = decltype(type);
    T whole = InputElement<T>(op, 0, i);
    for (int rank = 1; rank < size; ++rank) {
      whole = Reduced(op, whole, InputElement<T>(op, rank, i));
    }
    if (op != ReduceOp::kAverage) return Scaled(whole, postscale);
    return postscale == 1.0 ? Average(whole, size)
                            : Scaled(whole, postscale / size);
  });
}

}  // namespace tfring

#endif  // TESTS_CPP_ELEMENTS_H_
