// Compares every dtype and op with one plain line of C++ per op, on all pairs
// of edge cases and on random bits.
#include "tfring_ops/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/interesting_elements.h"
#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"

namespace tfring {
namespace {

constexpr int64_t kCounts[] = {0, 1, 7, 64, 1000};

// The type that a person would compute in.
template <typename T>
using Number = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

// Edge cases of arithmetic, numbered so that a test can form all pairs; the
// remaining operands are random bits.  Bools are random bytes, not only 0 and
// 1.
template <typename T>
T Special(uint64_t choice) {
  using Limits = std::numeric_limits<Number<T>>;
  if constexpr (std::is_same_v<T, bool>) {
    return choice % 2 != 0;
  } else if constexpr (std::is_integral_v<T>) {
    const T values[] = {0,
                        1,
                        2,
                        3,
                        static_cast<T>(-1),
                        static_cast<T>(-3),
                        Limits::max(),
                        static_cast<T>(Limits::max() / 2 + 1),
                        Limits::lowest(),
                        static_cast<T>(Limits::lowest() + 1)};
    return values[choice % std::size(values)];
  } else {
    const Number<T> values[] = {
        0, Limits::denorm_min(), Limits::min(),      Number<T>{1} / 3,   1,
        3, Limits::max(),        Limits::infinity(), Limits::quiet_NaN()};
    const Number<T> value = values[choice / 2 % std::size(values)];
    return T(choice % 2 == 0 ? value : -value);
  }
}
constexpr int kSpecial = 20;  // values at most

struct Operands {
  Elements a, b;
};
Operands MakeOperands(DataType dtype, int64_t count, int64_t first = 0) {
  Operands operands{InterestingElements(dtype, count, 0),
                    InterestingElements(dtype, count, 1)};
  VisitType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < std::min<int64_t>(count, kSpecial * kSpecial);
         ++i) {
      const T a = Special<T>((first + i) / kSpecial);
      const T b = Special<T>((first + i) % kSpecial);
      std::memcpy(&operands.a[i * sizeof(T)], &a, sizeof(T));
      std::memcpy(&operands.b[i * sizeof(T)], &b, sizeof(T));
    }
  });
  return operands;
}

// Returns element `i`; of a bool, whether its byte is not 0.
template <typename T>
T At(const Elements& elements, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    return elements[i] != std::byte{0};
  } else {
    T value;
    std::memcpy(static_cast<void*>(&value), &elements[i * sizeof(T)],
                sizeof(T));
    return value;
  }
}

template <typename T>
T Expected(ReduceOp op, T a, T b) {
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    if (IsNan(a)) return a;
    if (IsNan(b)) return b;
  }
  return Reduced(op, a, b);
}

class KernelsTest : public testing::TestWithParam<DataType> {
 protected:
  static DataType dtype() { return GetParam(); }
  static int64_t element_bytes() { return SizeInBytes(dtype()); }

  static void ExpectReduced(const Elements& actual, const Operands& operands,
                            ReduceOp op) {
    SCOPED_TRACE(Name(op));
    const auto count = static_cast<int64_t>(actual.size()) / element_bytes();
    VisitType(dtype(), [&](auto type) {
      using T = decltype(type);
      for (int64_t i = 0; i < count; ++i) {
        const T expected =
            Expected(op, At<T>(operands.a, i), At<T>(operands.b, i));
        ExpectSame(actual, i, expected,
                   op == ReduceOp::kMin || op == ReduceOp::kMax);
        if (testing::Test::HasFailure()) return;
      }
    });
  }

  // Equal to the bit, but that all NaN are one, and if `any_zero`, -0 and 0.
  template <typename T>
  static void ExpectSame(const Elements& actual, int64_t i, T expected,
                         bool any_zero) {
    const T value = At<T>(actual, i);
    if (IsNan(value) && IsNan(expected)) return;
    const auto number = static_cast<Number<T>>(value);
    if (any_zero && number == 0 && static_cast<Number<T>>(expected) == 0) {
      return;
    }
    EXPECT_EQ(std::memcmp(&actual[i * sizeof(T)], &expected, sizeof(T)), 0)
        << "element " << i << ": got " << +number << ", expected "
        << +static_cast<Number<T>>(expected);
  }

  static void Reduce(Elements& dst, const Elements& a, const Elements& b,
                     ReduceOp op) {
    CpuKernels().Reduce(dst.data(), a.data(), b.data(),
                        static_cast<int64_t>(a.size()) / element_bytes(),
                        dtype(), op);
  }
};
INSTANTIATE_TEST_SUITE_P(AllTypes, KernelsTest, testing::ValuesIn(kDataTypes),
                         [](const testing::TestParamInfo<DataType>& info) {
                           return std::string(Name(info.param));
                         });

TEST_P(KernelsTest, ReducesOntoEitherOperandOrBoth) {
  for (const ReduceOp op : kReduceOps) {
    for (const int64_t count : kCounts) {
      const Operands operands = MakeOperands(dtype(), count);
      Elements a = operands.a, b = operands.b, both = operands.a;
      Reduce(a, a, b, op);
      ExpectReduced(a, operands, op);
      Reduce(b, operands.a, b, op);
      ExpectReduced(b, operands, op);
      Reduce(both, both, both, op);
      ExpectReduced(both, {operands.a, operands.a}, op);
    }
  }
}

// The range is a segment somewhere in a buffer, aligned to its elements only.
TEST_P(KernelsTest, TouchesNothingBesideTheRange) {
  constexpr std::byte kUntouched{1};
  for (const ReduceOp op : kReduceOps) {
    for (const int64_t count : kCounts) {
      const Operands operands = MakeOperands(dtype(), count, 1);
      Elements dst((count + 2) * element_bytes(), kUntouched);
      CpuKernels().Reduce(dst.data() + element_bytes(), operands.a.data(),
                          operands.b.data(), count, dtype(), op);
      for (int64_t i = 0; i < element_bytes(); ++i) {
        EXPECT_EQ(dst[i], kUntouched);
        EXPECT_EQ(dst[dst.size() - 1 - i], kUntouched);
      }
      ExpectReduced(
          {dst.begin() + element_bytes(), dst.end() - element_bytes()},
          operands, op);
    }
  }
}

TEST_P(KernelsTest, NullIsLegalForNothing) {
  for (const ReduceOp op : kReduceOps) {
    CpuKernels().Reduce(nullptr, nullptr, nullptr, 0, dtype(), op);
  }
  CpuKernels().Scale(nullptr, 0, dtype(), 0.5);
  CpuKernels().Copy(nullptr, nullptr, 0);
}

TEST_P(KernelsTest, ScalesAsDoubleAndStaysInRange) {
  for (const double factor : {0.0, 0.5, 1.0 / 3, 1.5, -2.0, 1e30, -1e30}) {
    SCOPED_TRACE(factor);
    const Elements input = MakeOperands(dtype(), 500).a;
    Elements output(input.size());
    CpuKernels().Scale(output.data(), input.data(), 500, dtype(), factor);
    VisitType(dtype(), [&](auto type) {
      using T = decltype(type);
      using Limits = std::numeric_limits<T>;
      for (int64_t i = 0; i < 500 && !HasFailure(); ++i) {
        const T value = At<T>(input, i);
        const double product =
            static_cast<double>(static_cast<Number<T>>(value)) * factor;
        T expected = value;
        if constexpr (kIsFloat<T>) {
          expected = T(static_cast<Number<T>>(product));
        } else if constexpr (!std::is_same_v<T, bool>) {
          expected = product >= std::ldexp(1.0, Limits::digits) ? Limits::max()
                     : product <= static_cast<double>(Limits::lowest())
                         ? Limits::lowest()
                         : static_cast<T>(std::trunc(product));
        } else {  // A bool keeps its byte.
          EXPECT_EQ(output[i], input[i]);
          continue;
        }
        ExpectSame(output, i, expected, false);
      }
    });
  }
}

TEST_P(KernelsTest, ScalingByOneChangesNoBit) {
  const Elements input = MakeOperands(dtype(), 1000).a;
  Elements data(input.size());
  CpuKernels().Scale(data.data(), input.data(), 1000, dtype(), 1.0);
  CpuKernels().Scale(data.data(), 1000, dtype(), 1.0);
  EXPECT_EQ(data, input);
}

// The tests below use literal numbers for the promises of the header, in case
// the reference above has the same error as the code.

template <typename T>
T ReduceOne(T a, T b, DataType dtype, ReduceOp op) {
  T result;
  CpuKernels().Reduce(&result, &a, &b, 1, dtype, op);
  return result;
}

template <typename T>
T ScaleOne(T value, DataType dtype, double factor) {
  CpuKernels().Scale(&value, 1, dtype, factor);
  return value;
}

TEST(CpuKernelsTest, HalfIsComputedInFloat) {
  const Float16 a(2048.0F);
  const Float16 sum =
      ReduceOne(a, Float16(1.0F), DataType::kFloat16, ReduceOp::kSum);
  EXPECT_EQ(static_cast<float>(sum), 2048.0F);  // 2049 is a tie, to even
  const Float16 product =
      ReduceOne(a, a, DataType::kFloat16, ReduceOp::kProduct);
  EXPECT_TRUE(std::isinf(static_cast<float>(product)));
  const Bfloat16 wide = ReduceOne(Bfloat16(2048.0F), Bfloat16(2048.0F),
                                  DataType::kBfloat16, ReduceOp::kProduct);
  EXPECT_EQ(static_cast<float>(wide), 0x1p22F);
}

TEST(CpuKernelsTest, AverageOfEqualFloatsIsThatFloat) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    // The values have few enough digits for the sum to be exact.
    for (const float value : {0x1.2345p0F, 0x1.ffffp-3F, -0x1.5555p7F}) {
      const float sum = value * static_cast<float>(ranks);
      ASSERT_EQ(ScaleOne(sum, DataType::kFloat32, 1.0 / ranks), value) << ranks;
    }
  }
}

TEST(CpuKernelsTest, AverageOfEqualIntegersIsThatInteger) {
  for (int ranks = 1; ranks <= 128; ++ranks) {
    for (const int value : {0, 1, -1, 7, 16'777'215}) {
      ASSERT_EQ(ScaleOne<int32_t>(value * ranks, DataType::kInt32, 1.0 / ranks),
                value)
          << ranks;
    }
  }
}

TEST(CpuKernelsTest, ScaledIntegersAreTruncatedAndStayInRange) {
  EXPECT_EQ(ScaleOne<int32_t>(7, DataType::kInt32, 0.5), 3);
  EXPECT_EQ(ScaleOne<int32_t>(-7, DataType::kInt32, 0.5), -3);
  EXPECT_EQ(ScaleOne<int8_t>(100, DataType::kInt8, 2.0), 127);
  EXPECT_EQ(ScaleOne<int8_t>(100, DataType::kInt8, -2.0), -128);
  EXPECT_EQ(ScaleOne<uint8_t>(100, DataType::kUint8, -2.0), 0);
  EXPECT_EQ(ScaleOne<int32_t>(100, DataType::kInt32, NAN), 0);
  EXPECT_EQ(ScaleOne<int32_t>(1, DataType::kInt32, 0x1.fffffffffffffp30),
            INT32_MAX);
  EXPECT_EQ(ScaleOne<int64_t>(1, DataType::kInt64, 0x1p63), INT64_MAX);
  EXPECT_EQ(ScaleOne<uint64_t>(1, DataType::kUint64, 0x1p64), UINT64_MAX);
  EXPECT_EQ(ScaleOne<uint64_t>(1, DataType::kUint64, 0x1p63),
            uint64_t{1} << 63);
}

TEST(CpuKernelsTest, CopiesElsewhereAndOntoItself) {
  const std::vector<uint8_t> src = {1, 2, 3, 4, 5};
  std::vector<uint8_t> dst(5, 9);
  CpuKernels().Copy(dst.data(), src.data(), 4);
  EXPECT_EQ(dst, (std::vector<uint8_t>{1, 2, 3, 4, 9}));
  CpuKernels().Copy(dst.data(), dst.data(), 5);
  EXPECT_EQ(dst, (std::vector<uint8_t>{1, 2, 3, 4, 9}));
  EXPECT_TRUE(CpuKernels().Synchronize().ok());
}

TEST(CpuKernelsTest, CopiesPiecesAndScalesThem) {
  const std::vector<int32_t> from = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> to(6, 9);
  const std::vector<CopyPiece> pieces = {{&from[4], to.data(), 2},
                                         {from.data(), &to[2], 3}};
  CpuKernels().CopyPieces(pieces, DataType::kInt32, DataType::kInt32, 1.0);
  EXPECT_EQ(to, (std::vector<int32_t>{5, 6, 1, 2, 3, 9}));
  CpuKernels().CopyPieces(pieces, DataType::kInt32, DataType::kInt32, 2.0);
  EXPECT_EQ(to, (std::vector<int32_t>{10, 12, 2, 4, 6, 9}));
}

}  // namespace
}  // namespace tfring
