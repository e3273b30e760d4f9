// The loops of the kernels on host memory, to be compiled once for each kind
// of CPU: cpu_variants.h.
//
// Note [One definition for each CPU]
// The linker keeps one copy of a template or inline function that several units
// have compiled, and if it kept AVX-512's, every CPU would run it.  So all code
// here is in a template over `Cpu`, a class in the unnamed namespace of the
// unit that includes it: its instantiations belong to that unit.  half.h's
// functions are always inlined, and of the standard library only constants are
// used.  `make -f tools/native.mk check/symbols` checks this.
//
// Note [The same bits on every CPU]
// A job's ranks may run on CPUs of several kinds, and the same job on different
// ones tomorrow.  Each variant computes an element with the same IEEE
// operations in the same order, and no contraction (tools/native.mk): so
// results are the same to the bit, except for the sign and payload of a NaN.
//
// Note [No streaming stores]
// Streaming stores keep the sums out of the caches, although the primitive that
// sends a sum reads it next.  In place, where an ordinary sum of float32 ran at
// 180 GB/s in segments of 512 KiB, they ran at 50; they win only out of place.
#ifndef TFRING_OPS_KERNELS_CPU_LOOPS_H_
#define TFRING_OPS_KERNELS_CPU_LOOPS_H_

#include <cassert>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tfring_ops/base/half.h"
#include "tfring_ops/base/types.h"

namespace tfring {

// CpuLoops requires of `Cpu` the vectors that hold kFloats floats and kDoubles
// doubles, which have C++'s operators, and conversions of the elements of all
// floating-point types to Floats and back.  This is the portable version, which
// computes one element at a time; `Unit` is any class of the unit's own.
template <typename Unit>
struct PortableCpu {
  using Floats = float;
  static constexpr int64_t kFloats = 1;
  using Doubles __attribute__((vector_size(16))) = double;
  static constexpr int64_t kDoubles = 2;

  template <typename T>
  static Floats Load(const T* from) {
    return static_cast<float>(*from);
  }
  template <typename T>
  static void Store(T* to, Floats value) {
    *to = T(value);
  }
  // Multiplies as double and rounds to float.
  static Floats Multiply(Floats value, double factor) {
    return static_cast<float>(static_cast<double>(value) * factor);
  }
};

template <typename Cpu>
class CpuLoops {
 public:
  static void Reduce(void* dst, const void* a, const void* b, int64_t count,
                     DataType dtype, ReduceOp op) {
    Dispatch(dtype, [=](auto tag) {
      using T = typename decltype(tag)::type;
      Dispatch(op, [=](auto operation) {
        ReduceElements(static_cast<T*>(dst), static_cast<const T*>(a),
                       static_cast<const T*>(b), count, operation);
      });
    });
  }

  static void Scale(void* dst, const void* src, int64_t count, DataType dtype,
                    double factor) {
    Dispatch(dtype, [=](auto tag) {
      using T = typename decltype(tag)::type;
      ScaleElements(static_cast<T*>(dst), static_cast<const T*>(src), count,
                    factor);
    });
  }

  static void Convert(void* dst, DataType to, const void* src, DataType from,
                      int64_t count) {
    Dispatch(to, [=](auto to_tag) {
      Dispatch(from, [=](auto from_tag) {
        using To = typename decltype(to_tag)::type;
        using From = typename decltype(from_tag)::type;
        if constexpr (kTravelsAs<From, To> || kTravelsAs<To, From>) {
          ConvertElements(static_cast<To*>(dst), static_cast<const From*>(src),
                          count);
        } else {
          assert(false && "not converted");
        }
      });
    });
  }

 private:
  using Doubles = typename Cpu::Doubles;

  // 49 * (1.0 / 49) is a little less than 1, and means 1: a value that is less
  // than a whole number by at most this share of it is not truncated to the
  // number below.
  static constexpr double kForgiven =
      2 * std::numeric_limits<double>::epsilon();

  // A byte of any value.  Reading a `bool` that is neither 0 nor 1 is
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

  template <typename T>
  using Element = std::conditional_t<std::is_same_v<T, bool>, Bool, T>;

  // Calls visit(Tag<T>()) with the type of one element in memory.
  template <typename Visitor>
  static void Dispatch(DataType dtype, const Visitor& visit) {
    switch (dtype) {
#define TFRING_VISIT(NAME, TYPE, TEXT) \
  case DataType::NAME:                 \
    return visit(Tag<Element<TYPE>>());
      TFRING_FOR_EACH_DTYPE(TFRING_VISIT)
#undef TFRING_VISIT
    }
    assert(false && "not a DataType");
  }

  // The type that an element is computed in.
  template <typename T>
  using Compute = std::conditional_t<
      std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>, float,
      std::conditional_t<std::is_same_v<T, Bool>, bool, T>>;

  // The operations take and return compute types, or Cpu::Floats.
  //
  // Integers wrap round as unsigned numbers of at least 32 bits: signed
  // overflow is undefined, and C++ would multiply two uint16_t as int.
  template <typename T>
  using Unsigned =
      std::conditional_t<sizeof(T) <= sizeof(uint32_t), uint32_t, uint64_t>;
  template <typename T>
  using Wrapping = std::conditional_t<std::is_integral_v<T>, Unsigned<T>, T>;

  struct Add {
    template <typename T>
    static T Apply(T a, T b) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) +
                            static_cast<Wrapping<T>>(b));
    }
    static bool Apply(bool a, bool b) { return a | b; }
  };

  struct Multiply {
    template <typename T>
    static T Apply(T a, T b) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) *
                            static_cast<Wrapping<T>>(b));
    }
    static bool Apply(bool a, bool b) { return a & b; }
  };

  // The operator is `|`, because `||` would be a branch, which Floats do not
  // have.
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

  template <typename T>
  static auto IsNan(T value) {
    if constexpr (std::is_integral_v<T>) {
      return false;
    } else {
      return value != value;
    }
  }

  // Calls visit(operation).
  template <typename Visitor>
  static void Dispatch(ReduceOp op, const Visitor& visit) {
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

  // Calls body(i) for every i in [0, count), many at a time: no call may touch
  // an element that another call writes.
  //
  // At -O2, g++ vectorises only loops with a known count, hence the blocks, and
  // only loops that need no check for overlap at run time, hence the pragma.
  static constexpr int64_t kBlock = 64;
  template <typename Body>
  static void ForEach(int64_t count, const Body& body) {
    int64_t begin = 0;
    for (; begin + kBlock <= count; begin += kBlock) {
#pragma GCC ivdep  // NOLINT(clang-diagnostic-unknown-pragmas)
      for (int64_t i = 0; i < kBlock; ++i) body(begin + i);
    }
    for (; begin < count; ++begin) body(begin);
  }

  template <typename T>
  static constexpr bool kIsHalf =
      std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

  // CanTravelAs, without the pairs of one type.
  template <typename T, typename Wire>
  static constexpr bool kTravelsAs =
      std::is_floating_point_v<T> && kIsHalf<Wire>;

  template <typename T, typename Operation>
  static void ReduceElements(T* dst, const T* a, const T* b, int64_t count,
                             Operation operation) {
    if constexpr (kIsHalf<T>) {
      ForEachFloats(count, [=](auto cpu, int64_t i) {
        cpu.Store(dst + i, operation.Apply(cpu.Load(a + i), cpu.Load(b + i)));
      });
    } else {
      ForEach(count, [=](int64_t i) {
        const auto x = static_cast<Compute<T>>(a[i]);
        const auto y = static_cast<Compute<T>>(b[i]);
        dst[i] = static_cast<T>(operation.Apply(x, y));
      });
    }
  }

  template <typename T>
  static void ScaleElements(T* dst, const T* src, int64_t count,
                            double factor) {
    if constexpr (kIsHalf<T>) {
      ForEachFloats(count, [=](auto cpu, int64_t i) {
        cpu.Store(dst + i, cpu.Multiply(cpu.Load(src + i), factor));
      });
    } else if constexpr (std::is_same_v<T, Bool>) {
      if (dst != src && count > 0) __builtin_memcpy(dst, src, count);
    } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 4) {
      int64_t begin = 0;
      for (; begin + kBlock <= count; begin += kBlock) {
        ScaleBlock(dst + begin, src + begin, factor);
      }
      T rest[kBlock] = {};
      const auto rest_bytes = static_cast<size_t>(count - begin) * sizeof(T);
      if (rest_bytes == 0) return;
      __builtin_memcpy(rest, src + begin, rest_bytes);
      ScaleBlock(rest, rest, factor);
      __builtin_memcpy(dst + begin, rest, rest_bytes);
    } else {
      ForEach(count, [=](int64_t i) {
        const auto x = static_cast<double>(src[i]);
        dst[i] = FromDouble<T>(x * factor);
      });
    }
  }

  template <typename To, typename From>
  static void ConvertElements(To* dst, const From* src, int64_t count) {
    ForEachFloats(count, [=](auto cpu, int64_t i) {
      cpu.Store(dst + i, cpu.Load(src + i));
    });
  }

  // Calls body(cpu, i) for groups of Cpu::kFloats elements from i on, and, with
  // the portable cpu, for each of the rest.
  template <typename Body>
  static void ForEachFloats(int64_t count, const Body& body) {
    const int64_t groups = count / Cpu::kFloats;
    ForEach(groups, [=](int64_t i) { body(Cpu(), i * Cpu::kFloats); });
    for (int64_t i = groups * Cpu::kFloats; i < count; ++i) {
      body(PortableCpu<Cpu>(), i);
    }
  }

  // Scales kBlock integers of at most 32 bits in small steps, each of which the
  // compiler can vectorise.
  template <typename T>
  static void ScaleBlock(T* dst, const T* src, double factor) {
    // A type that holds all of T, and that every CPU converts from and to
    // double.
    using Wide =
        std::conditional_t<std::is_same_v<T, uint32_t>, int64_t, int32_t>;
    Wide wide[kBlock];
    double products[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): int8_t is a number.
      wide[i] = static_cast<Wide>(src[i]);
    }
    for (int64_t i = 0; i < kBlock; ++i) {
      products[i] = static_cast<double>(wide[i]) * factor;
    }
    for (int64_t i = 0; i < kBlock; i += Cpu::kDoubles) {
      Doubles group;
      __builtin_memcpy(&group, products + i, sizeof(group));
      group = IntoRange<T>(group);
      __builtin_memcpy(products + i, &group, sizeof(group));
    }
    for (int64_t i = 0; i < kBlock; ++i) {
      wide[i] = static_cast<Wide>(products[i]);
    }
    for (int64_t i = 0; i < kBlock; ++i) dst[i] = static_cast<T>(wide[i]);
  }

  // Clamps to the range of T, an integer of at most 32 bits, and makes NaN 0,
  // so that a conversion to T is defined.
  template <typename T>
  static Doubles IntoRange(Doubles values) {
    using Limits = std::numeric_limits<T>;
    constexpr auto kLowest = static_cast<double>(Limits::lowest());
    constexpr auto kHighest = static_cast<double>(Limits::max());
    const Doubles zero = {};
    values *= 1.0 + kForgiven;
    values = values == values ? values : zero;
    values = values > kLowest ? values : zero + kLowest;
    return values < kHighest ? values : zero + kHighest;
  }

  // Rounds a value that differs from a whole number by at most kForgiven of it.
  // A factor of 1 + kForgiven, as in IntoRange, could add 1 and more to a large
  // 64-bit integer.
  static double Forgive(double value) {
    // Doubles from 2^52 on are whole: so the addition rounds, to nearest even,
    // and larger values need no rounding.
    constexpr double kWhole = 0x1p52;
    const double magnitude = __builtin_fabs(value);
    const double nearest = (magnitude + kWhole) - kWhole;
    const bool is_near =
        (magnitude < kWhole) &
        (__builtin_fabs(magnitude - nearest) <= kForgiven * magnitude);
    return is_near ? __builtin_copysign(nearest, value) : value;
  }

  template <typename T>
  static T FromDouble(double value) {
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      constexpr T kLowest = Limits::lowest();
      constexpr T kHighest = Limits::max();
      // The lowest 64-bit value is a double.  The highest is not; the double
      // after it is one larger.
      constexpr auto kBegin = static_cast<double>(kLowest);
      constexpr double kEnd =
          2.0 * static_cast<double>(uint64_t{1} << (Limits::digits - 1));
      value = Forgive(value);
      const bool below = value <= kBegin;
      const bool above = value >= kEnd;
      const bool outside = below | above | IsNan(value);
      const auto inside = static_cast<T>(outside ? 0.0 : value);
      return above ? kHighest : below ? kLowest : inside;
    } else {
      return static_cast<T>(value);
    }
  }
};

}  // namespace tfring

#endif  // TFRING_OPS_KERNELS_CPU_LOOPS_H_
