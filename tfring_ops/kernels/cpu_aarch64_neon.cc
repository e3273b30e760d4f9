// NEON, which every aarch64 CPU has, so the unit needs no flags.  Only the
// conversions of float16 differ from the portable code.
#include <arm_neon.h>

#include "tfring_ops/kernels/cpu_loops.h"
#include "tfring_ops/kernels/cpu_variants.h"

namespace tfring {
namespace {

struct Neon {
  using Floats = float32x4_t;
  using Doubles = float64x2_t;
  static constexpr int64_t kFloats = 4;
  static constexpr int64_t kDoubles = 2;

  static Floats Load(const Float16* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(
        vld1_u16(reinterpret_cast<const uint16_t*>(from))));
  }

  static void Store(Float16* to, Floats values) {
    vst1_u16(reinterpret_cast<uint16_t*>(to),
             vreinterpret_u16_f16(vcvt_f16_f32(values)));
  }

  static Floats Load(const Bfloat16* from) {
    return vreinterpretq_f32_u32(
        vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(from)), 16));
  }

  // Rounds as Bfloat16 does.
  static void Store(Bfloat16* to, Floats values) {
    const uint32x4_t bits = vreinterpretq_u32_f32(values);
    const uint32x4_t upper = vshrq_n_u32(bits, 16);
    const uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
    const uint32x4_t rounded =
        vshrq_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
    const uint32x4_t nan = vorrq_u32(upper, vdupq_n_u32(0x0040));
    const uint32x4_t is_number = vceqq_f32(values, values);
    vst1_u16(reinterpret_cast<uint16_t*>(to),
             vmovn_u32(vbslq_u32(is_number, rounded, nan)));
  }

  static Floats Load(const float* from) { return vld1q_f32(from); }
  static void Store(float* to, Floats values) { vst1q_f32(to, values); }

  static Floats Load(const double* from) {
    return vcvt_high_f32_f64(vcvt_f32_f64(vld1q_f64(from)),
                             vld1q_f64(from + 2));
  }

  static void Store(double* to, Floats values) {
    vst1q_f64(to, vcvt_f64_f32(vget_low_f32(values)));
    vst1q_f64(to + 2, vcvt_high_f64_f32(values));
  }

  static Floats Multiply(Floats values, double factor) {
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(values));
    const float64x2_t high = vcvt_high_f64_f32(values);
    return vcvt_high_f32_f64(vcvt_f32_f64(vmulq_n_f64(low, factor)),
                             vmulq_n_f64(high, factor));
  }
};

}  // namespace

const CpuVariant kCpuNeon = {"neon", CpuLoops<Neon>::Reduce,
                             CpuLoops<Neon>::Scale, CpuLoops<Neon>::Convert};

}  // namespace tfring
