// Kernels of a simulated job, which take simulated time.
#ifndef TFRING_TESTS_CPP_SIMULATED_KERNELS_H_
#define TFRING_TESTS_CPP_SIMULATED_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// Takes simulated time for what it reduces or copies, and does it for few bytes
// alone.  All ranks share one large memory, whose contents do not matter and
// need not be sent.
class SimulatedKernels final : public Kernels {
 public:
  // Operands of so many bytes have contents: measurements and control data need
  // them.
  static constexpr int64_t kSmallBytes = 4096;

  // With sleep(seconds) the rank that runs stands still.
  // REQUIRES: no rank allocates more than `most_bytes`.
  SimulatedKernels(std::function<void(double)> sleep, double bytes_per_second,
                   int64_t most_bytes)
      : sleep_(std::move(sleep)),
        bytes_per_second_(bytes_per_second),
        memory_(most_bytes) {}

  absl::Span<std::byte> shared_memory() const {
    return absl::MakeSpan(memory_);
  }

  void Reduce(void* dst, const void* a, const void* b, int64_t count,
              DataType dtype, ReduceOp op) const override {
    if (Passes(count * SizeInBytes(dtype))) {
      CpuKernels().Reduce(dst, a, b, count, dtype, op);
    }
  }
  void Scale(void* dst, const void* src, int64_t count, DataType dtype,
             double factor) const override {
    if (Passes(count * SizeInBytes(dtype))) {
      CpuKernels().Scale(dst, src, count, dtype, factor);
    }
  }
  void Copy(void* dst, const void* src, int64_t bytes) const override {
    if (Passes(bytes)) CpuKernels().Copy(dst, src, bytes);
  }
  void CopyPieces(absl::Span<const CopyPiece> pieces, DataType from,
                  DataType /*to*/, double /*factor*/) const override {
    for (const CopyPiece& piece : pieces) {
      Passes(piece.count * SizeInBytes(from));
    }
  }
  void Upload(void* dst, const void* host, int64_t bytes) const override {
    CpuKernels().Copy(dst, host, bytes);
  }
  void Adasum(void* /*dst*/, const void* /*a*/, const void* /*b*/,
              int64_t /*count*/, DataType /*dtype*/) const override {
    std::abort();
  }
  absl::Status Synchronize() const override { return absl::OkStatus(); }
  absl::Status AwaitWork() const override { return absl::OkStatus(); }
  absl::StatusOr<void*> Allocate(int64_t bytes) const override {
    if (bytes <= kSmallBytes) return CpuKernels().Allocate(bytes);
    if (bytes > static_cast<int64_t>(memory_.size())) std::abort();
    return static_cast<void*>(memory_.data());
  }
  void Free(void* memory) const override {
    if (memory != memory_.data()) CpuKernels().Free(memory);
  }

 private:
  bool Passes(int64_t bytes) const {
    sleep_(static_cast<double>(bytes) / bytes_per_second_);
    return bytes <= kSmallBytes;
  }

  const std::function<void(double)> sleep_;
  const double bytes_per_second_;
  mutable std::vector<std::byte> memory_;
};

}  // namespace tfring

#endif  // TFRING_TESTS_CPP_SIMULATED_KERNELS_H_
