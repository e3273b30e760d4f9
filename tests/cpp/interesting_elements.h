// Edge cases of arithmetic, and their expected results.
#ifndef TESTS_CPP_INTERESTING_ELEMENTS_H_
#define TESTS_CPP_INTERESTING_ELEMENTS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "tests/cpp/elements.h"
#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"

namespace tfring {

template <typename T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Float16> ||
    std::is_same_v<T, Bfloat16>;
template <typename T>
using Number = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
bool IsNan(T value) {
  if constexpr (kIsFloat<T>) {
    return std::isnan(static_cast<Number<T>>(value));
  } else {
    return false;
  }
}

// Random bits; half of the floating-point numbers are those that arithmetic
// goes wrong with.
template <typename T>
T Interesting(int rank, int64_t index) {
  const uint64_t random = RandomBits(rank, index);
  T value;
  std::memcpy(static_cast<void*>(&value), &random, sizeof(value));
  if constexpr (kIsFloat<T>) {
    using Limits = std::numeric_limits<Number<T>>;
    const Number<T> special[] = {0,
                                 Limits::denorm_min(),
                                 Limits::min() / 2,
                                 Limits::min(),
                                 1,
                                 3,
                                 Limits::max(),
                                 Limits::infinity(),
                                 Limits::quiet_NaN(),
                                 0x1p-24F,
                                 0x1p-14F,
                                 65504,
                                 65520};
    const uint64_t choice = random >> 32;
    if (choice % 2 == 0) {
      const Number<T> number = special[choice / 2 % std::size(special)];
      value = static_cast<T>(choice % 64 < 32 ? number : -number);
    }
  }
  return value;
}

inline Elements InterestingElements(DataType dtype, int64_t count, int rank) {
  Elements elements(count * SizeInBytes(dtype));
  VisitType(dtype, [&](auto type) {
    // A bool's byte may hold anything.
    using Type = decltype(type);
    using T = std::conditional_t<std::is_same_v<Type, bool>, uint8_t, Type>;
    T* const typed = reinterpret_cast<T*>(elements.data());
    for (int64_t i = 0; i < count; ++i) typed[i] = Interesting<T>(rank, i);
  });
  return elements;
}

// Equal to the bit; but where `any_nan`, one NaN is as good as another.
inline void ExpectSameBits(DataType dtype, const std::byte* actual,
                           const std::byte* expected, int64_t count,
                           bool any_nan) {
  VisitType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* const a = actual + i * sizeof(T);
      const std::byte* const e = expected + i * sizeof(T);
      if (std::memcmp(a, e, sizeof(T)) == 0) continue;
      T x = {};
      T y = {};
      if constexpr (kIsFloat<T>) {
        std::memcpy(static_cast<void*>(&x), a, sizeof(T));
        std::memcpy(static_cast<void*>(&y), e, sizeof(T));
      }
      if (any_nan && IsNan(x) && IsNan(y)) continue;
      ADD_FAILURE()
          << "element " << i << " of " << count << ": got "
          << testing::PrintToString(std::vector<std::byte>(a, a + sizeof(T)))
          << ", expected "
          << testing::PrintToString(std::vector<std::byte>(e, e + sizeof(T)));
      return;
    }
  });
}

}  // namespace tfring

#endif  // TESTS_CPP_INTERESTING_ELEMENTS_H_
