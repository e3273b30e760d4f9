// How fast the kernels are: GB/s of memory that is read and written, for every
// dtype and operation, on a segment that stays in cache and on a large buffer.
//
//   make -f tools/native.mk run/benchmarks/kernels
//
// Prints the best of some rounds: other work on the machine only slows them.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/cpu_variants.h"

namespace tfring {
namespace {

constexpr DataType kDataTypes[] = {
    DataType::kFloat16, DataType::kBfloat16, DataType::kFloat32,
    DataType::kFloat64, DataType::kInt8,     DataType::kInt16,
    DataType::kInt32,   DataType::kInt64,    DataType::kUint8,
    DataType::kUint16,  DataType::kUint32,   DataType::kUint64,
    DataType::kBool};
constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kMin,
                                   ReduceOp::kProduct};
constexpr int kRounds = 5;

// GB/s of `run`, which moves `bytes` over and over.
template <typename Run>
double Measure(int64_t bytes, const Run& run) {
  using Clock = std::chrono::steady_clock;
  const int64_t repeats = std::max<int64_t>(1, (int64_t{64} << 20) / bytes);
  run();
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int64_t i = 0; i < repeats; ++i) run();
    const double seconds =
        std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(bytes * repeats) / seconds / 1e9);
  }
  return best;
}

void Run(const CpuVariant& variant, int64_t bytes) {
  // The bytes of an operand; all are 1.0 / small in every dtype.
  std::vector<std::byte> dst(bytes), a(bytes, std::byte{0x3c}),
      b(bytes, std::byte{0x3c});
  std::printf("%s, %lld KiB\n%10s %8s %8s %8s %8s %8s\n", variant.name,
              static_cast<long long>(bytes >> 10), "", "sum", "min", "product",
              "scale/2", "scale/3");
  for (const DataType dtype : kDataTypes) {
    const int64_t count = bytes / SizeInBytes(dtype);
    std::printf("%10s", Name(dtype));
    for (const ReduceOp op : kReduceOps) {
      std::printf(" %8.1f", Measure(3 * bytes, [&] {
                    variant.reduce(dst.data(), a.data(), b.data(), count, dtype,
                                   op);
                  }));
    }
    for (const double divisor : {2.0, 3.0}) {
      // There and back, or all would soon be zero.
      double factor = 1 / divisor;
      dst = a;
      std::printf(" %8.1f", Measure(2 * bytes, [&] {
                    variant.scale(dst.data(), dst.data(), count, dtype, factor);
                    factor = 1 / factor;
                  }));
    }
    std::printf("\n");
  }
  std::printf("%10s %8.1f\n\n", "copy", Measure(2 * bytes, [&] {
                std::memcpy(dst.data(), a.data(), bytes);
              }));
}

}  // namespace
}  // namespace tfring

int main() {
  for (const int64_t bytes : {int64_t{128} << 10, int64_t{32} << 20}) {
    for (const tfring::CpuVariant* variant : tfring::SupportedCpuVariants()) {
      tfring::Run(*variant, bytes);
    }
  }
}
