#include "tfring_ops/engine/execution/neutral_contribution.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/half.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// The value of T that changes no result of `op`.
template <typename T>
T Identity(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kSum:
      return T{0};
    case ReduceOp::kProduct:
      return T{1};
    case ReduceOp::kMin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case ReduceOp::kMax:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  return T{0};
}

// Writes some on the host, which is copied until it fills `memory`.
template <typename T>
void Fill(const Kernels& kernels, T value, std::byte* memory, int64_t bytes) {
  constexpr int64_t kBlockBytes = 64 << 10;
  int64_t filled = std::min(bytes, kBlockBytes);
  // Not a vector, whose elements of bool are bits.
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

}  // namespace

NeutralContribution::NeutralContribution(const CollectiveRequest& request) {
  entry_.request = request;
  // Twice an infinity is one still, but not minus twice.
  entry_.is_neutral = true;
  if (request.kind != CollectiveKind::kAllgather) return;
  for (TensorInfo& tensor : entry_.request.tensors) tensor.dims[0] = 0;
}

absl::Status NeutralContribution::Allocate(const Kernels& kernels) {
  const CollectiveRequest& request = entry_.request;
  for (const TensorInfo& tensor : request.tensors) {
    const int64_t bytes = SizeInBytes(request.dtype, tensor);
    TFRING_ASSIGN_OR_RETURN(std::byte* const memory,
                            memory_.emplace_back(kernels).AtLeast(bytes));
    if (request.kind == CollectiveKind::kAllreduce) {
      FillWithIdentity(kernels, request.dtype, request.op, memory, bytes);
    } else if (request.kind == CollectiveKind::kAdasum) {
      FillWithIdentity(kernels, request.dtype, ReduceOp::kSum, memory, bytes);
    }
    entry_.buffers.push_back({memory, memory});
  }
  entry_.allocate_output =
      [this](int index,
             const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
    const TensorInfo output{"", dims};
    return memory_[index].AtLeast(SizeInBytes(entry_.request.dtype, output));
  };
  return kernels.Synchronize();
}

// Note [Averages of float16 are divided first]
// The sum of large float16 is infinite even where their average is not.  So
// they are divided before they are added, as far as the prescale factor has not
// done it already.  That costs no bytes on the wire; and as it is by a power of
// two, the rest being left for afterwards, it is exact but for what becomes
// less than 2^-14, where bits of float16 are lost.  Larger floats that are cast
// to float16 on the way are not divided first: gradients without loss scaling
// are that small, and gradient_predivide_factor is there for large ones.
void AverageOver(int contributors, CollectiveRequest& request) {
  // Adasum's result is no sum, whatever the request's op says.
  if (request.kind == CollectiveKind::kAdasum ||
      request.op != ReduceOp::kAverage) {
    return;
  }
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

std::string CheckRunsWithoutJoined(const std::vector<int32_t>& joined,
                                   const CollectiveRequest& request) {
  switch (request.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kAdasum:  // which zeros do not change
    case CollectiveKind::kAllgather:
    case CollectiveKind::kBarrier:
    case CollectiveKind::kJoin:
      return "";
    case CollectiveKind::kBroadcast:
      if (std::find(joined.begin(), joined.end(), request.root_rank) ==
          joined.end()) {
        return "";
      }
      return absl::StrCat("its root, rank ", request.root_rank,
                          ", has joined and sends nothing");
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAlltoall:
      return absl::StrCat("rank ", joined[0],
                          " has joined, and its part of the result would be "
                          "lost");
  }
  return "";
}

}  // namespace tfring
