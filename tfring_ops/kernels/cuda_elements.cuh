// One element in the kernels on a GPU: how each type is stored, in which type it
// is computed, and the operations, with the same IEEE operations in the same
// order as in cpu_loops.h.  It needs no standard library.
#ifndef TFRING_OPS_KERNELS_CUDA_ELEMENTS_CUH_
#define TFRING_OPS_KERNELS_CUDA_ELEMENTS_CUH_

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

// `Stored` is the type in memory, `Computed` the type of Load's result.
template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static __device__ T Load(T value) { return value; }
  static __device__ T Store(T value) { return value; }
};

struct float16 {
  using Stored = uint16_t;
  using Computed = float;
  static __device__ float Load(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ uint16_t Store(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};

struct bfloat16 {
  using Stored = uint16_t;
  using Computed = float;
  static __device__ float Load(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
  // Rounds to nearest even, and keeps a NaN.
  static __device__ uint16_t Store(float value) {
    const uint32_t bits = __float_as_uint(value);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return value == value ? rounded : (bits >> 16) | 0x0040;
  }
};

// Any byte except zero is true.
struct boolean {
  using Stored = uint8_t;
  using Computed = bool;
  static __device__ bool Load(uint8_t value) { return value != 0; }
  static __device__ uint8_t Store(bool value) { return value ? 1 : 0; }
};

template <typename T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<int8_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int16_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<uint8_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<uint16_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int32_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
  using Type = uint64_t;
};

struct Sum {
  template <typename T>
  static __device__ T Apply(T a, T b) {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
  static __device__ bool Apply(bool a, bool b) { return a || b; }
};

struct Product {
  template <typename T>
  static __device__ T Apply(T a, T b) {
    using U = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
  static __device__ bool Apply(bool a, bool b) { return a && b; }
};

// A NaN and anything is NaN.
struct Min {
  template <typename T>
  static __device__ T Apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

struct Max {
  template <typename T>
  static __device__ T Apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

// The constants of scaling are explained in cpu_loops.h.
constexpr double kForgiven = 0x1p-51;

// Scales integers of up to 32 bits, which doubles represent exactly.
template <typename T>
__device__ T ScaledInteger(T value, double factor, double lowest,
                           double highest) {
  double scaled = static_cast<double>(value) * factor;
  scaled *= 1.0 + kForgiven;
  scaled = scaled == scaled ? scaled : 0.0;
  scaled = scaled > lowest ? scaled : lowest;
  scaled = scaled < highest ? scaled : highest;
  return static_cast<T>(static_cast<int64_t>(scaled));
}

__device__ double Forgive(double value) {
  constexpr double kWhole = 0x1p52;
  const double magnitude = fabs(value);
  const double nearest = (magnitude + kWhole) - kWhole;
  const bool is_near = magnitude < kWhole &&
                       fabs(magnitude - nearest) <= kForgiven * magnitude;
  return is_near ? copysign(nearest, value) : value;
}

// Scales integers of 64 bits; `end` is one more than the highest.
template <typename T>
__device__ T ScaledLong(T value, double factor, T lowest, T highest,
                        double end) {
  const double scaled = Forgive(static_cast<double>(value) * factor);
  if (scaled >= end) return highest;
  if (scaled <= static_cast<double>(lowest)) return lowest;
  return scaled == scaled ? static_cast<T>(scaled) : 0;
}

struct Scaled {
  static __device__ float Apply(float value, double factor) {
    return static_cast<float>(static_cast<double>(value) * factor);
  }
  static __device__ double Apply(double value, double factor) {
    return value * factor;
  }
  static __device__ int8_t Apply(int8_t value, double factor) {
    return ScaledInteger(value, factor, -0x1p7, 0x1p7 - 1);
  }
  static __device__ int16_t Apply(int16_t value, double factor) {
    return ScaledInteger(value, factor, -0x1p15, 0x1p15 - 1);
  }
  static __device__ int32_t Apply(int32_t value, double factor) {
    return ScaledInteger(value, factor, -0x1p31, 0x1p31 - 1);
  }
  static __device__ uint8_t Apply(uint8_t value, double factor) {
    return ScaledInteger(value, factor, 0, 0x1p8 - 1);
  }
  static __device__ uint16_t Apply(uint16_t value, double factor) {
    return ScaledInteger(value, factor, 0, 0x1p16 - 1);
  }
  static __device__ uint32_t Apply(uint32_t value, double factor) {
    return ScaledInteger(value, factor, 0, 0x1p32 - 1);
  }
  static __device__ int64_t Apply(int64_t value, double factor) {
    constexpr int64_t kHighest = 0x7fffffffffffffff;
    return ScaledLong<int64_t>(value, factor, -kHighest - 1, kHighest, 0x1p63);
  }
  static __device__ uint64_t Apply(uint64_t value, double factor) {
    return ScaledLong<uint64_t>(value, factor, 0, ~uint64_t{0}, 0x1p64);
  }
};

#endif  // TFRING_OPS_KERNELS_CUDA_ELEMENTS_CUH_
