// Floats as they travel and back, against the casts of base/half.h.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

// Converts values of type From to type To and expects the bits of `expected`.
template <typename To, typename From>
void ExpectConverted(DataType from_type, DataType to_type,
                     const std::vector<From>& from, double factor,
                     const std::vector<To>& expected) {
  // Three pieces out of order; one is empty.
  const size_t half = from.size() / 2;
  std::vector<To> to(from.size() + 1, To(7.0F));
  const std::vector<CopyPiece> pieces = {
      {from.data() + half, to.data() + half,
       static_cast<int64_t>(from.size() - half)},
      {nullptr, nullptr, 0},
      {from.data(), to.data(), static_cast<int64_t>(half)}};
  CpuKernels().CopyPieces(pieces, from_type, to_type, factor);
  for (size_t i = 0; i < from.size(); ++i) {
    const bool same = std::memcmp(&to[i], &expected[i], sizeof(To)) == 0;
    const bool are_nan =
        std::isnan(static_cast<double>(static_cast<float>(to[i]))) &&
        std::isnan(static_cast<float>(expected[i]));
    ASSERT_TRUE(same || are_nan)
        << Name(from_type) << " to " << Name(to_type) << ", element " << i;
  }
  EXPECT_EQ(static_cast<float>(to.back()), 7.0F);
}

// Random bits, in which every exponent of float16 is common.
template <typename T>
std::vector<T> FloatsToRound() {
  std::mt19937_64 random(7);
  using Limits = std::numeric_limits<T>;
  std::vector<T> values = {0,
                           -0.0F,
                           Limits::denorm_min(),
                           Limits::min(),
                           Limits::max(),
                           Limits::infinity(),
                           -Limits::infinity(),
                           Limits::quiet_NaN()};
  while (values.size() < 5000) {
    const auto bits = static_cast<int64_t>(random());
    T value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
    values.push_back(static_cast<T>(std::ldexp(bits, bits % 50 - 93)));
    // Half-way between two.
    values.push_back(static_cast<T>(1 + (2 * (bits % 1024) + 1) * 0x1p-11));
    values.push_back(static_cast<T>(1 + (2 * (bits % 128) + 1) * 0x1p-8));
  }
  return values;
}

template <typename Half, typename T>
void TestConversion(DataType half_type, DataType dtype) {
  const std::vector<T> values = FloatsToRound<T>();
  for (const double factor : {1.0, 1.0 / 3}) {
    std::vector<Half> halves;
    for (const T value : values) {
      // The value is cast before it is scaled, so it is rounded twice.
      Half half(static_cast<float>(value));
      const auto scaled = static_cast<double>(static_cast<float>(half));
      if (factor != 1.0) half = Half(static_cast<float>(scaled * factor));
      halves.push_back(half);
    }
    ExpectConverted(dtype, half_type, values, factor, halves);
    std::vector<T> wide;
    for (const Half half : halves) {
      const auto value = static_cast<T>(static_cast<float>(half));
      wide.push_back(factor == 1.0 ? value : static_cast<T>(value * factor));
    }
    ExpectConverted(half_type, dtype, halves, factor, wide);
  }
}

TEST(ConversionTest, ConvertsToWhatTravelsAndBack) {
  TestConversion<Float16, float>(DataType::kFloat16, DataType::kFloat32);
  TestConversion<Float16, double>(DataType::kFloat16, DataType::kFloat64);
  TestConversion<Bfloat16, float>(DataType::kBfloat16, DataType::kFloat32);
  TestConversion<Bfloat16, double>(DataType::kBfloat16, DataType::kFloat64);
}

TEST(ConversionTest, OnlyLargerFloatsTravelAsAnotherType) {
  const DataType float16 = DataType::kFloat16;
  EXPECT_TRUE(CanTravelAs(DataType::kFloat32, float16));
  EXPECT_TRUE(CanTravelAs(DataType::kFloat64, DataType::kBfloat16));
  EXPECT_TRUE(CanTravelAs(DataType::kInt8, DataType::kInt8));
  EXPECT_FALSE(CanTravelAs(float16, DataType::kFloat32));
  EXPECT_FALSE(CanTravelAs(float16, DataType::kBfloat16));
  EXPECT_FALSE(CanTravelAs(DataType::kFloat64, DataType::kFloat32));
  EXPECT_FALSE(CanTravelAs(DataType::kInt32, float16));
}

}  // namespace
}  // namespace tfring
