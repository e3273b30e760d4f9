#include "tfring_ops/engine/collectives/reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "tfring_ops/base/half.h"

namespace tfring {
namespace {

// The identities of TFRING_FOR_EACH_REDUCTION.
template <typename T>
T Zero() {
  return T{0};
}
template <typename T>
T One() {
  return T{1};
}
template <typename T>
T Highest() {
  using Limits = std::numeric_limits<T>;
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}
template <typename T>
T Lowest() {
  using Limits = std::numeric_limits<T>;
  return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
}

template <typename T>
T Identity(ReduceOp op) {
  switch (op) {
#define TFRING_IDENTITY(OP, NAME, IDENTITY) \
  case ReduceOp::OP:                        \
    return IDENTITY<T>();
    // Some reductions have the same identity.
    TFRING_FOR_EACH_REDUCTION(TFRING_IDENTITY)  // NOLINT(bugprone-branch-clone)
#undef TFRING_IDENTITY
  }
  return Zero<T>();
}

// Writes a block of identities on the host, and copies it until `memory` is
// full.
template <typename T>
void Fill(const Kernels& kernels, T value, std::byte* memory, int64_t bytes) {
  constexpr int64_t kBlockBytes = 64 << 10;
  int64_t filled = std::min(bytes, kBlockBytes);
  // This is no vector, because a vector of bool has bits for elements.
  const auto block = std::make_unique<T[]>(filled / sizeof(T));
  std::fill_n(block.get(), filled / sizeof(T), value);
  kernels.Upload(memory, block.get(), filled);
  while (filled < bytes) {
    const int64_t more = std::min(filled, bytes - filled);
    kernels.Copy(memory + filled, memory, more);
    filled += more;
  }
}

// The type that has the limits of `T`.
template <typename T>
struct LimitsOf {
  using type = T;
};
template <>
struct LimitsOf<Float16> {
  using type = float;  // rounds to an infinity as well
};
template <>
struct LimitsOf<Bfloat16> {
  using type = float;
};

}  // namespace

void FillWithIdentity(const Kernels& kernels, DataType dtype, ReduceOp op,
                      std::byte* memory, int64_t bytes) {
  switch (dtype) {
#define TFRING_FILL(NAME, TYPE, TEXT)                                          \
  case DataType::NAME:                                                         \
    return Fill(kernels,                                                       \
                static_cast<TYPE>(Identity<LimitsOf<TYPE>::type>(op)), memory, \
                bytes);
    TFRING_FOR_EACH_DTYPE(TFRING_FILL)
#undef TFRING_FILL
  }
}

// Note [Averages of float16 are divided first]
// The sum of large float16 values may be infinite even where their average is
// not.  So they are divided before they are added, as far as the prescale
// factor has not done so already.  That costs no bytes on the wire.  The
// divisor is a power of two, and the rest of the division follows afterwards;
// so the first division is exact, except for results below 2^-14, which lose
// bits.  Larger floats that are cast to float16 for the wire are not divided
// first: gradients without loss scaling are that small, and
// gradient_predivide_factor is there for large ones.
void AverageOver(int contributors, CollectiveRequest& request) {
  if (request.op != ReduceOp::kAverage) return;
  request.op = ReduceOp::kSum;
  double before = 1.0;
  if (request.dtype == DataType::kFloat16) {
    const double prescaled = std::abs(request.prescale_factor) * contributors;
    before = std::clamp(prescaled, 1.0, static_cast<double>(contributors));
    before = std::exp2(std::ceil(std::log2(before)));
  }
  request.prescale_factor /= before;
  request.postscale_factor = request.postscale_factor * before / contributors;
}

}  // namespace tfring
