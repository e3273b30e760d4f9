// Both types are small enough to be tried whole: every bit pattern is widened
// and compared with arithmetic on doubles, and every float near a point where
// rounding changes its mind is rounded.
#include "tfring_ops/base/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tfring {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One format, described as IEEE 754 defines it rather than as the header
// computes it.
struct Float16Format {
  using Type = Float16;
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
};
struct Bfloat16Format {
  using Type = Bfloat16;
  static constexpr int kMantissaBits = 7;
  static constexpr int kBias = 127;
};

float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

template <typename Format>
class HalfTest : public testing::Test {
 protected:
  using Type = typename Format::Type;
  static constexpr uint16_t kInfinityBits = static_cast<uint16_t>(
      0x7fff >> Format::kMantissaBits << Format::kMantissaBits);

  static uint16_t Round(float value) { return Type(value).bits(); }
  static float Widen(uint16_t bits) {
    return static_cast<float>(Type::FromBits(bits));
  }

  // Returns the value of `bits`, which are not negative.  The bits of infinity
  // have the power of two that would come next, because numbers half-way to it
  // round to infinity.
  static double Value(uint16_t bits) {
    const int exponent = bits >> Format::kMantissaBits;
    const int mantissa = bits & ((1 << Format::kMantissaBits) - 1);
    const int implicit = exponent == 0 ? 0 : 1 << Format::kMantissaBits;
    return std::ldexp(
        implicit + mantissa,
        std::max(exponent, 1) - Format::kBias - Format::kMantissaBits);
  }
};

using Formats = testing::Types<Float16Format, Bfloat16Format>;
TYPED_TEST_SUITE(HalfTest, Formats);

TYPED_TEST(HalfTest, WidensEveryPatternExactly) {
  for (uint16_t bits = 0; bits < this->kInfinityBits; ++bits) {
    const auto negative = static_cast<uint16_t>(bits | 0x8000);
    ASSERT_EQ(this->Widen(bits), this->Value(bits)) << bits;
    ASSERT_EQ(this->Widen(negative), -this->Value(bits)) << bits;
    ASSERT_TRUE(std::signbit(this->Widen(negative))) << bits;
  }
  EXPECT_EQ(this->Widen(this->kInfinityBits), kInfinity);
  EXPECT_EQ(this->Widen(this->kInfinityBits | 0x8000), -kInfinity);
  for (uint32_t bits = this->kInfinityBits + 1u; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(this->Widen(static_cast<uint16_t>(bits)))) << bits;
  }
}

TYPED_TEST(HalfTest, ComesBackFromFloatUnchanged) {
  for (uint16_t bits = 0; bits <= this->kInfinityBits; ++bits) {
    const auto negative = static_cast<uint16_t>(bits | 0x8000);
    ASSERT_EQ(this->Round(this->Widen(bits)), bits);
    ASSERT_EQ(this->Round(this->Widen(negative)), negative);
  }
}

TYPED_TEST(HalfTest, RoundsToNearestEven) {
  for (uint16_t below = 0; below < this->kInfinityBits; ++below) {
    const auto above = static_cast<uint16_t>(below + 1);
    const uint16_t even = below % 2 == 0 ? below : above;
    // Exact in float, for it has at least two bits more.
    const auto middle =
        static_cast<float>((this->Value(below) + this->Value(above)) / 2);
    ASSERT_EQ(this->Round(middle), even) << below;
    ASSERT_EQ(this->Round(std::nextafter(middle, 0.0F)), below) << below;
    ASSERT_EQ(this->Round(std::nextafter(middle, kInfinity)), above) << below;
    ASSERT_EQ(this->Round(-middle), even | 0x8000) << below;
  }
}

TYPED_TEST(HalfTest, OverflowsToInfinity) {
  for (const float value : {std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(this->Round(value), this->kInfinityBits) << value;
    EXPECT_EQ(this->Round(-value), this->kInfinityBits | 0x8000) << value;
  }
}

TYPED_TEST(HalfTest, KeepsNanAndItsSign) {
  // Payloads that would vanish if the mantissa were merely cut off or rounded.
  for (const uint32_t payload :
       {0x1u, 0x1fffu, 0x8000u, 0x400000u, 0x7fffffu}) {
    const uint32_t nan = 0x7f800000u | payload;
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint16_t bits = this->Round(FloatFromBits(nan | sign));
      EXPECT_GT(bits & 0x7fff, this->kInfinityBits) << payload;
      EXPECT_EQ(bits >> 15, sign >> 31) << payload;
      EXPECT_NE(bits & (1 << (TypeParam::kMantissaBits - 1)), 0)
          << "a quiet NaN has the mantissa's first bit set: " << payload;
      const uint32_t kept = payload >> (23 - TypeParam::kMantissaBits);
      EXPECT_EQ(bits & kept, kept) << payload;
    }
  }
}

// The reference above and the code could have the same error; these bits are
// known.
TEST(KnownHalvesTest, AreAsTheStandardSays) {
  EXPECT_EQ(Float16(-2.0F).bits(), 0xc000);
  EXPECT_EQ(Float16(65504.0F).bits(), 0x7bff);   // the largest
  EXPECT_EQ(Float16(65520.0F).bits(), 0x7c00);   // half-way to infinity
  EXPECT_EQ(Float16(0x1p-24F).bits(), 0x0001);   // the smallest subnormal
  EXPECT_EQ(Float16(0x1p-149F).bits(), 0x0000);  // a subnormal float
  EXPECT_EQ(static_cast<float>(Float16::FromBits(0x3555)), 0x1.554p-2F);
  EXPECT_EQ(Bfloat16(-2.0F).bits(), 0xc000);
  EXPECT_EQ(Bfloat16(3.14159274F).bits(), 0x4049);
  EXPECT_EQ(Bfloat16(0x1.03p0F).bits(), 0x3f82);  // a tie, to even
  EXPECT_EQ(Bfloat16(0x1p-133F).bits(), 0x0001);  // the smallest subnormal
}

}  // namespace
}  // namespace tfring
