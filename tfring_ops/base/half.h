// The two 16-bit floating-point types, as storage: all arithmetic happens in
// float.
//
// Conversion to float is exact.  Conversion from float rounds to nearest even,
// overflows to infinity, keeps subnormals and the sign of zero, and turns every
// NaN into a quiet NaN of the same sign, with as much of its payload as fits:
// bit for bit like the CPUs' own instructions (F16C, NEON).
//
// Written in software, without branches, so that loops over these conversions
// are vectorised for any CPU: g++ has _Float16 for x86 only since version 12,
// and without F16C it calls a library function for every element.
//
// Always inlined: kernels/cpu_loops.h compiles them for several CPUs, and of a
// function that is not inlined the linker keeps the copy of any one of them.
#ifndef TFRING_OPS_BASE_HALF_H_
#define TFRING_OPS_BASE_HALF_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#define TFRING_ALWAYS_INLINE [[gnu::always_inline]] inline

namespace tfring {
namespace half_internal {

TFRING_ALWAYS_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TFRING_ALWAYS_INLINE float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Returns value < limit ? below : otherwise, for values below 2^31.  From that
// expression g++ makes a branch, and a branch with float arithmetic, which
// might trap, keeps a loop from being vectorised.
TFRING_ALWAYS_INLINE uint32_t SelectBelow(uint32_t value, uint32_t limit,
                                          uint32_t below, uint32_t otherwise) {
  // The sign of the difference, in every bit.
  const auto mask =
      static_cast<uint32_t>(static_cast<int32_t>(value - limit) >> 31);
  return (below & mask) | (otherwise & ~mask);
}

inline constexpr uint32_t kFloatSign = 0x80000000;
inline constexpr uint32_t kFloatInfinity = 0x7f800000;

}  // namespace half_internal

// IEEE 754 binary16: 1 sign, 5 exponent, 10 mantissa bits.
class Float16 {
 public:
  Float16() = default;
  TFRING_ALWAYS_INLINE explicit Float16(float value) : bits_(Round(value)) {}
  TFRING_ALWAYS_INLINE explicit operator float() const { return Widen(bits_); }

  TFRING_ALWAYS_INLINE static Float16 FromBits(uint16_t bits) {
    Float16 value;
    value.bits_ = bits;
    return value;
  }
  TFRING_ALWAYS_INLINE uint16_t bits() const { return bits_; }

 private:
  // The mantissa moves by this many bits between the two formats, and the
  // exponent's bias by this much.
  static constexpr int kShift = 23 - 10;
  static constexpr uint32_t kRebias = (127u - 15u) << 23;
  static constexpr uint32_t kInfinity = 0x7c00;
  static constexpr uint32_t kQuietNan = 0x7e00;
  static constexpr uint32_t kMantissa = 0x03ff;

  // Follows Fabian Giesen, "Float->half variants", 2012
  // (https://gist.github.com/rygorous/2156668): every case is computed and the
  // right one chosen at the end.
  TFRING_ALWAYS_INLINE static uint16_t Round(float value) {
    using half_internal::BitsOf;
    using half_internal::SelectBelow;
    const uint32_t bits = BitsOf(value);
    const uint32_t sign = bits & half_internal::kFloatSign;
    const uint32_t magnitude = bits ^ sign;

    // A carry out of the mantissa rightly raises the exponent, up to infinity.
    const uint32_t odd = (magnitude >> kShift) & 1;
    const uint32_t normal = (magnitude - kRebias + 0xfff + odd) >> kShift;
    // The last bit of 0.5f is worth the smallest subnormal, 2^-24: the addition
    // rounds to it.
    const uint32_t subnormal =
        BitsOf(half_internal::FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    const uint32_t nan = ((magnitude >> kShift) & kMantissa) | kQuietNan;
    const uint32_t infinity_or_nan =
        SelectBelow(half_internal::kFloatInfinity, magnitude, nan, kInfinity);

    constexpr uint32_t kSmallestNormal = kRebias + (1u << 23);  // 2^-14
    constexpr uint32_t kTooLarge = (127u + 16u) << 23;          // 2^16
    return static_cast<uint16_t>(
        SelectBelow(
            magnitude, kSmallestNormal, subnormal,
            SelectBelow(magnitude, kTooLarge, normal, infinity_or_nan)) |
        (sign >> 16));
  }

  // Follows fp16_ieee_to_fp32_value of Marat Dukhan's FP16 library
  // (https://github.com/Maratyszcza/FP16).
  TFRING_ALWAYS_INLINE static float Widen(uint16_t bits) {
    using half_internal::BitsOf;
    using half_internal::FloatOf;
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t magnitude = bits & 0x7fffu;

    // The exponent is first raised so far that infinity and NaN (31) become
    // those of a float (255).  Arithmetic then brings it down, which leaves
    // infinity and NaN unchanged.
    const uint32_t normal =
        BitsOf(FloatOf((magnitude << kShift) + kRebias + kRebias) * 0x1p-112f);
    // Convert by way of int32_t, which every CPU converts to float in one
    // instruction.
    const uint32_t subnormal =
        BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);

    constexpr uint32_t kSmallestNormal = 0x0400;
    return FloatOf(half_internal::SelectBelow(magnitude, kSmallestNormal,
                                              subnormal, normal) |
                   sign);
  }

  uint16_t bits_;
};

// The upper half of a float: 1 sign, 8 exponent, 7 mantissa bits.
class Bfloat16 {
 public:
  Bfloat16() = default;
  TFRING_ALWAYS_INLINE explicit Bfloat16(float value) : bits_(Round(value)) {}
  TFRING_ALWAYS_INLINE explicit operator float() const {
    return half_internal::FloatOf(static_cast<uint32_t>(bits_) << 16);
  }

  TFRING_ALWAYS_INLINE static Bfloat16 FromBits(uint16_t bits) {
    Bfloat16 value;
    value.bits_ = bits;
    return value;
  }
  TFRING_ALWAYS_INLINE uint16_t bits() const { return bits_; }

 private:
  TFRING_ALWAYS_INLINE static uint16_t Round(float value) {
    const uint32_t bits = half_internal::BitsOf(value);
    const uint32_t magnitude = bits & ~half_internal::kFloatSign;
    const uint32_t odd = (bits >> 16) & 1;
    const uint32_t rounded = (bits + 0x7fff + odd) >> 16;
    // Rounding could carry a NaN into infinity or zero; the bit makes it quiet.
    const uint32_t nan = (bits >> 16) | 0x0040;
    return static_cast<uint16_t>(half_internal::SelectBelow(
        half_internal::kFloatInfinity, magnitude, nan, rounded));
  }

  uint16_t bits_;
};

static_assert(sizeof(Float16) == 2 && std::is_trivial_v<Float16>);
static_assert(sizeof(Bfloat16) == 2 && std::is_trivial_v<Bfloat16>);

}  // namespace tfring

#undef TFRING_ALWAYS_INLINE

#endif  // TFRING_OPS_BASE_HALF_H_
