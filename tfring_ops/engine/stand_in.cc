#include "tfring_ops/engine/stand_in.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/half.h"

namespace tfring {
namespace {

// What changes no value of T, in the allreduces that zero would change.
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

template <typename T>
void Fill(std::vector<std::byte>& memory, T value) {
  // std::vector's memory is aligned for any number.
  auto* const first = reinterpret_cast<T*>(memory.data());
  std::fill_n(first, memory.size() / sizeof(T), value);
}

void FillWithIdentity(DataType dtype, ReduceOp op,
                      std::vector<std::byte>& memory) {
  switch (dtype) {
    case DataType::kFloat16:
      return Fill(memory, Float16(Identity<float>(op)));
    case DataType::kBfloat16:
      return Fill(memory, Bfloat16(Identity<float>(op)));
    case DataType::kFloat32:
      return Fill(memory, Identity<float>(op));
    case DataType::kFloat64:
      return Fill(memory, Identity<double>(op));
    case DataType::kInt8:
      return Fill(memory, Identity<int8_t>(op));
    case DataType::kInt16:
      return Fill(memory, Identity<int16_t>(op));
    case DataType::kInt32:
      return Fill(memory, Identity<int32_t>(op));
    case DataType::kInt64:
      return Fill(memory, Identity<int64_t>(op));
    case DataType::kUint8:
      return Fill(memory, Identity<uint8_t>(op));
    case DataType::kUint16:
      return Fill(memory, Identity<uint16_t>(op));
    case DataType::kUint32:
      return Fill(memory, Identity<uint32_t>(op));
    case DataType::kUint64:
      return Fill(memory, Identity<uint64_t>(op));
    case DataType::kBool:
      return Fill(memory, Identity<bool>(op));
  }
}

}  // namespace

StandIn::StandIn(const CollectiveRequest& request)
    : memory_(request.tensors.size()) {
  entry_.request = request;
  // Twice an infinity is one still, but not minus twice.
  entry_.request.prescale_factor = 1.0;
  for (size_t i = 0; i < memory_.size(); ++i) {
    TensorInfo& tensor = entry_.request.tensors[i];
    if (request.kind == CollectiveKind::kAllgather) tensor.dims[0] = 0;
    memory_[i].resize(SizeInBytes(request.dtype, tensor));
    if (request.kind == CollectiveKind::kAllreduce) {
      FillWithIdentity(request.dtype, request.op, memory_[i]);
    }
    entry_.buffers.push_back({memory_[i].data(), memory_[i].data()});
  }
  entry_.allocate_output =
      [this](int index,
             const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
    const TensorInfo output{"", dims};
    memory_[index].resize(SizeInBytes(entry_.request.dtype, output));
    return memory_[index].data();
  };
}

void AverageOver(int contributors, CollectiveRequest& request) {
  if (request.op != ReduceOp::kAverage) return;
  request.op = ReduceOp::kSum;
  request.postscale_factor /= contributors;
}

std::string WhyNotWithout(const std::vector<int32_t>& joined,
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
