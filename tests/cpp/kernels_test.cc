// Every dtype with every op against one plain line of C++ per op, on all pairs
// of the values where arithmetic goes wrong and on random bits.
#include "tfring_ops/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"

namespace tfring {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kProduct};
constexpr int64_t kCounts[] = {0, 1, 7, 64, 1000};

// A dtype, the type of its elements in memory, and the type that a person would
// compute them in.
template <DataType kType, typename StoredType, typename ValueType = StoredType>
struct Element {
  static constexpr DataType kDataType = kType;
  using Stored = StoredType;
  using Value = ValueType;
};
using Bool = Element<DataType::kBool, uint8_t, bool>;

template <typename T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(value));
  return value;
}

template <typename T>
std::vector<T> SpecialValues() {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<T, bool>) {
    return {false, true};
  } else if constexpr (std::is_floating_point_v<T>) {
    const std::vector<T> positive = {
        0, Limits::denorm_min(), Limits::min(),      T{1} / 3,           1,
        3, Limits::max(),        Limits::infinity(), Limits::quiet_NaN()};
    std::vector<T> values = positive;
    for (const T value : positive) values.push_back(-value);
    return values;
  } else {
    return {0,
            1,
            2,
            3,
            static_cast<T>(-1),
            static_cast<T>(-3),
            Limits::max(),
            Limits::max() / 2 + 1,
            Limits::lowest(),
            static_cast<T>(Limits::lowest() + 1)};
  }
}

template <typename E>
class KernelsTest : public testing::Test {
 protected:
  using Stored = typename E::Stored;
  using Value = typename E::Value;
  using Operands = std::pair<std::vector<Stored>, std::vector<Stored>>;

  static Value Read(Stored element) { return static_cast<Value>(element); }
  static Stored Write(Value value) { return static_cast<Stored>(value); }

  // `count` pairs: those of special values first, in turn from `first` on, then
  // random bits.  Bools are random bytes, not only 0 and 1.
  static Operands MakeOperands(int64_t count, size_t first = 0) {
    std::vector<Stored> special;
    for (const auto value : SpecialValues<Value>()) {
      special.push_back(Write(value));
    }
    const size_t n = special.size();
    std::mt19937_64 random(2024);
    Operands operands;
    for (size_t i = first; i < first + static_cast<size_t>(count); ++i) {
      const bool is_special = i < n * n;
      operands.first.push_back(is_special ? special[i / n]
                                          : FromBits<Stored>(random()));
      operands.second.push_back(is_special ? special[i % n]
                                           : FromBits<Stored>(random()));
    }
    return operands;
  }

  static Value Expected(Value a, Value b, ReduceOp op) {
    if constexpr (std::is_floating_point_v<Value>) {
      if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
        if (std::isnan(a) || std::isnan(b)) return NAN;
      }
    }
    // The lowest bits of a sum or product do not depend on the others, so
    // integers of every size can be computed as the largest unsigned one.
    using Wide = std::conditional_t<std::is_integral_v<Value>, uint64_t, Value>;
    switch (op) {
      case ReduceOp::kAverage:
      case ReduceOp::kSum:
        return static_cast<Value>(static_cast<Wide>(a) + static_cast<Wide>(b));
      case ReduceOp::kMin:
        return std::min(a, b);
      case ReduceOp::kMax:
        return std::max(a, b);
      case ReduceOp::kProduct:
        return static_cast<Value>(static_cast<Wide>(a) * static_cast<Wide>(b));
    }
    return Value{};
  }

  // Equal to the bit, but that all NaN are one, and that -0 and 0 are equals
  // for the minimum and the maximum.
  static void ExpectSame(Stored actual, Stored expected, bool any_zero) {
    if constexpr (std::is_floating_point_v<Value>) {
      const Value a = Read(actual);
      const Value e = Read(expected);
      if (std::isnan(a) && std::isnan(e)) return;
      if (any_zero && a == 0 && e == 0) return;
    }
    EXPECT_EQ(std::memcmp(&actual, &expected, sizeof(Stored)), 0)
        << "got " << +Read(actual) << ", expected " << +Read(expected);
  }

  static void ExpectReduced(const std::vector<Stored>& actual,
                            const Operands& operands, ReduceOp op) {
    const bool any_zero = op == ReduceOp::kMin || op == ReduceOp::kMax;
    ASSERT_EQ(actual.size(), operands.first.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      const Value a = Read(operands.first[i]);
      const Value b = Read(operands.second[i]);
      SCOPED_TRACE(std::string(Name(E::kDataType)) + ", " + Name(op) + " of " +
                   std::to_string(a) + " and " + std::to_string(b));
      ExpectSame(actual[i], Write(Expected(a, b, op)), any_zero);
      if (testing::Test::HasFailure()) return;
    }
  }

  static void Reduce(Stored* dst, const Stored* a, const Stored* b,
                     int64_t count, ReduceOp op) {
    CpuKernels().Reduce(dst, a, b, count, E::kDataType, op);
  }

  static Stored Scaled(Stored element, double factor) {
    // Long enough for the vectorised part and the rest; all must be the same.
    const std::vector<Stored> source(67, element);
    std::vector<Stored> data(67);
    CpuKernels().Scale(data.data(), source.data(), 67, E::kDataType, factor);
    for (const Stored& other : data) {
      EXPECT_EQ(std::memcmp(&other, data.data(), sizeof(Stored)), 0);
    }
    return data[0];
  }
};

using Elements = testing::Types<
    Element<DataType::kFloat16, Float16, float>,
    Element<DataType::kBfloat16, Bfloat16, float>,
    Element<DataType::kFloat32, float>, Element<DataType::kFloat64, double>,
    Element<DataType::kInt8, int8_t>, Element<DataType::kInt16, int16_t>,
    Element<DataType::kInt32, int32_t>, Element<DataType::kInt64, int64_t>,
    Element<DataType::kUint8, uint8_t>, Element<DataType::kUint16, uint16_t>,
    Element<DataType::kUint32, uint32_t>, Element<DataType::kUint64, uint64_t>,
    Bool>;

struct ElementName {
  template <typename E>
  static std::string GetName(int /*index*/) {
    return Name(E::kDataType);
  }
};
TYPED_TEST_SUITE(KernelsTest, Elements, ElementName);

TYPED_TEST(KernelsTest, ReducesOntoEitherOperandOrBoth) {
  for (const ReduceOp op : kOps) {
    for (const int64_t count : kCounts) {
      const auto operands = this->MakeOperands(count);

      auto a = operands.first;
      this->Reduce(a.data(), a.data(), operands.second.data(), count, op);
      this->ExpectReduced(a, operands, op);

      auto b = operands.second;
      this->Reduce(b.data(), operands.first.data(), b.data(), count, op);
      this->ExpectReduced(b, operands, op);

      auto both = operands.first;
      this->Reduce(both.data(), both.data(), both.data(), count, op);
      this->ExpectReduced(both, {operands.first, operands.first}, op);
    }
  }
}

// The range is a segment somewhere in a buffer, aligned to its elements only.
TYPED_TEST(KernelsTest, TouchesNothingBesideTheRange) {
  using Stored = typename TypeParam::Stored;
  const auto untouched = FromBits<Stored>(0x0101010101010101);
  for (const ReduceOp op : kOps) {
    for (const int64_t count : kCounts) {
      const auto operands = this->MakeOperands(count, 1);
      std::vector<Stored> dst(static_cast<size_t>(count) + 2, untouched);
      this->Reduce(dst.data() + 1, operands.first.data(),
                   operands.second.data(), count, op);
      EXPECT_EQ(std::memcmp(&dst.front(), &untouched, sizeof(Stored)), 0);
      EXPECT_EQ(std::memcmp(&dst.back(), &untouched, sizeof(Stored)), 0);
      this->ExpectReduced({dst.begin() + 1, dst.end() - 1}, operands, op);
    }
  }
}

TYPED_TEST(KernelsTest, NullIsLegalForNothing) {
  for (const ReduceOp op : kOps) this->Reduce(nullptr, nullptr, nullptr, 0, op);
  CpuKernels().Scale(nullptr, 0, TypeParam::kDataType, 0.5);
  CpuKernels().Copy(nullptr, nullptr, 0);
}

TYPED_TEST(KernelsTest, ScalesAsDoubleAndStaysInRange) {
  using Stored = typename TypeParam::Stored;
  using Value = typename TypeParam::Value;
  using Limits = std::numeric_limits<Value>;
  for (const double factor : {0.0, 0.5, 1.0 / 3, 1.5, -2.0, 1e30, -1e30}) {
    const auto operands = this->MakeOperands(500);
    for (const Stored element : operands.first) {
      const Value value = this->Read(element);
      const double product = static_cast<double>(value) * factor;
      SCOPED_TRACE(std::to_string(value) + " * " + std::to_string(factor));
      Stored expected;
      if constexpr (std::is_same_v<TypeParam, Bool>) {
        expected = element;
      } else if constexpr (std::is_floating_point_v<Value>) {
        expected = this->Write(static_cast<Value>(product));
      } else if (product >= std::ldexp(1.0, Limits::digits)) {
        expected = Limits::max();
      } else if (product <= static_cast<double>(Limits::lowest())) {
        expected = Limits::lowest();
      } else {
        expected = static_cast<Value>(std::trunc(product));
      }
      this->ExpectSame(this->Scaled(element, factor), expected, false);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TYPED_TEST(KernelsTest, ScalingByOneChangesNoBit) {
  using Stored = typename TypeParam::Stored;
  const auto operands = this->MakeOperands(1000);
  std::vector<Stored> data(1000);
  CpuKernels().Scale(data.data(), operands.first.data(), 1000,
                     TypeParam::kDataType, 1.0);
  CpuKernels().Scale(data.data(), 1000, TypeParam::kDataType, 1.0);
  EXPECT_EQ(std::memcmp(data.data(), operands.first.data(),
                        data.size() * sizeof(Stored)),
            0);
}

// The rest says in numbers what the header promises, in case the reference
// above errs together with the code.

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
