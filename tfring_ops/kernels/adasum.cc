#include "tfring_ops/kernels/adasum.h"

#include "tfring_ops/base/half.h"

namespace tfring {
namespace {

double Number(Float16 value) { return static_cast<float>(value); }
double Number(Bfloat16 value) { return static_cast<float>(value); }
double Number(float value) { return value; }
double Number(double value) { return value; }

template <typename T>
void AdasumElements(T* dst, const T* a, const T* b, int64_t count) {
  // The number of partial sums of each kind, which a CPU adds up at the same
  // time.
  constexpr int kLanes = 8;
  double lanes_aa[kLanes] = {}, lanes_ab[kLanes] = {}, lanes_bb[kLanes] = {};
  const auto add = [&](int lane, int64_t i) {
    const double x = Number(a[i]);
    const double y = Number(b[i]);
    lanes_aa[lane] += x * x;
    lanes_ab[lane] += x * y;
    lanes_bb[lane] += y * y;
  };
  int64_t begin = 0;
  for (; begin + kLanes <= count; begin += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(lane, begin + lane);
  }
  for (; begin < count; ++begin) add(0, begin);
  double aa = 0, ab = 0, bb = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    aa += lanes_aa[lane];
    ab += lanes_ab[lane];
    bb += lanes_bb[lane];
  }

  const double of_a = aa == 0 ? 1 : 1 - ab / (2 * aa);
  const double of_b = bb == 0 ? 1 : 1 - ab / (2 * bb);
  for (int64_t i = 0; i < count; ++i) {
    const double sum = of_a * Number(a[i]) + of_b * Number(b[i]);
    if constexpr (sizeof(T) == sizeof(double)) {
      dst[i] = sum;
    } else {
      dst[i] = static_cast<T>(static_cast<float>(sum));
    }
  }
}

}  // namespace

bool HasAdasum(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

void Adasum(void* dst, const void* a, const void* b, int64_t count,
            DataType dtype) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    AdasumElements(static_cast<T*>(dst), static_cast<const T*>(a),
                   static_cast<const T*>(b), count);
  };
  if (dtype == DataType::kFloat16) run(Float16(0));
  if (dtype == DataType::kBfloat16) run(Bfloat16(0));
  if (dtype == DataType::kFloat32) run(float());
  if (dtype == DataType::kFloat64) run(double());
}

}  // namespace tfring
