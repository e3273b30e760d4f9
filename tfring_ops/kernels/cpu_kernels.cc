// The kernels on host memory.
//
// Behaviour that kernels.h does not specify:
// - The minimum and maximum of a NaN and anything is NaN, as in np.minimum and
//   np.maximum.
// - A byte of a bool is true unless it is zero; the result is 0 or 1.
// - Scale multiplies every dtype as double and rounds to the dtype (float16 and
//   bfloat16 through float): a sum of equal numbers that was exact averages to
//   that number.  An integer that would leave its range is clamped to it, and
//   NaN becomes 0.  A factor of exactly 1 changes nothing, not even an int64
//   that no double can hold.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/adasum.h"
#include "tfring_ops/kernels/cpu_variants.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

class CpuKernelsImpl final : public Kernels {
 public:
  explicit CpuKernelsImpl(const CpuVariant& variant) : variant_(variant) {}

  void Reduce(void* dst, const void* a, const void* b, int64_t count,
              DataType dtype, ReduceOp op) const override {
    variant_.reduce(dst, a, b, count, dtype, op);
  }

  void Scale(void* dst, const void* src, int64_t count, DataType dtype,
             double factor) const override {
    if (factor == 1.0) return Copy(dst, src, count * SizeInBytes(dtype));
    variant_.scale(dst, src, count, dtype, factor);
  }

  void Copy(void* dst, const void* src, int64_t bytes) const override {
    // memcpy may be given neither null nor the same place twice.
    if (bytes == 0 || dst == src) return;
    std::memcpy(dst, src, static_cast<size_t>(bytes));
  }

  void CopyPieces(absl::Span<const CopyPiece> pieces, DataType from,
                  DataType to, double factor) const override {
    for (const CopyPiece& piece : pieces) {
      if (from == to) {
        Scale(piece.to, piece.from, piece.count, to, factor);
      } else {
        ConvertPiece(piece, from, to, factor);
      }
    }
  }

  void Upload(void* dst, const void* host, int64_t bytes) const override {
    Copy(dst, host, bytes);
  }

  void Adasum(void* dst, const void* a, const void* b, int64_t count,
              DataType dtype) const override {
    tfring::Adasum(dst, a, b, count, dtype);
  }

  absl::Status Synchronize() const override { return absl::OkStatus(); }

  absl::Status AwaitWork() const override { return absl::OkStatus(); }

  absl::StatusOr<void*> Allocate(int64_t bytes) const override {
    constexpr size_t kPageBytes = 4096;
    const size_t pages =
        (static_cast<size_t>(bytes) + kPageBytes - 1) / kPageBytes;
    void* const memory = std::aligned_alloc(kPageBytes, pages * kPageBytes);
    if (memory == nullptr && bytes > 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", bytes, " bytes of memory are left"));
    }
    return memory;
  }

  void Free(void* memory) const override { std::free(memory); }

 private:
  // Converts in blocks, which are scaled while they are in the first-level
  // cache.
  void ConvertPiece(const CopyPiece& piece, DataType from, DataType to,
                    double factor) const {
    constexpr int64_t kBlock = 2048;
    const auto* src = static_cast<const std::byte*>(piece.from);
    auto* dst = static_cast<std::byte*>(piece.to);
    for (int64_t left = piece.count; left > 0; left -= kBlock) {
      const int64_t count = std::min(left, kBlock);
      variant_.convert(dst, to, src, from, count);
      if (factor != 1.0) variant_.scale(dst, dst, count, to, factor);
      src += count * SizeInBytes(from);
      dst += count * SizeInBytes(to);
    }
  }

  const CpuVariant& variant_;
};

}  // namespace

const Kernels& CpuKernels() {
  static const auto* const kernels =
      new CpuKernelsImpl(*SupportedCpuVariants().front());
  return *kernels;
}

}  // namespace tfring
