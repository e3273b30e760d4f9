#include "tfring_ops/nccl/launch_order.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"

namespace tfring {
namespace {

// The highest of the ranks' numbers.
absl::StatusOr<int64_t> Highest(Transport& host, int64_t own) {
  auto number = std::make_unique<int64_t>(own);
  Workspace scratch(CpuKernels());
  const RingContext ring{host, CpuKernels(), sizeof(own), scratch};
  RingBuffers buffers;
  buffers.input = buffers.output = number.get();
  buffers.count = 1;
  buffers.dtype = DataType::kInt64;
  buffers.op = ReduceOp::kMax;
  if (absl::Status status = RecursiveDoublingAllreduce(ring, buffers);
      !status.ok()) {
    // Messages of a transport that has failed may still use the memory.
    scratch.Keep();
    number.release();  // NOLINT(bugprone-unused-return-value)
    return status;
  }
  return *number;
}

}  // namespace

absl::Status LaunchOrder::Turn::Follow(void* stream) const {
  if (order_ == nullptr) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(order_->mutex_);
  if (order_->last_ == nullptr) return absl::OkStatus();
  return order_->last_->Await(stream);
}

absl::Status LaunchOrder::Turn::Launched(
    const std::shared_ptr<CudaEvent>& event, void* stream) const {
  if (order_ == nullptr) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(order_->mutex_);
  TFRING_RETURN_IF_ERROR(event->Record(stream));
  order_->last_ = event;
  return absl::OkStatus();
}

void LaunchOrder::Forget(const std::shared_ptr<CudaEvent>& event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_ == event) last_.reset();
}

absl::StatusOr<LaunchOrder::Turn> LaunchOrder::Await(int process_set,
                                                     Transport& host,
                                                     double timeout_seconds) {
  if (!several_) return Turn();
  const int64_t proposal = Enter(process_set);
  Turn turn(this, process_set);  // also to leave after an error
  TFRING_ASSIGN_OR_RETURN(const int64_t number, Highest(host, proposal));
  Agree(process_set, number);
  const auto begin = std::chrono::steady_clock::now();
  for (Backoff backoff; !IsFirst(process_set); backoff.Pause()) {
    TFRING_RETURN_IF_ERROR(host.Progress());
    const std::chrono::duration<double> waited =
        std::chrono::steady_clock::now() - begin;
    if (backoff.SeldomTurn() && timeout_seconds > 0 &&
        waited.count() > timeout_seconds) {
      return absl::DeadlineExceededError(
          absl::StrCat("NCCL has not launched a collective of another process "
                       "set for ",
                       timeout_seconds, " s"));
    }
  }
  return turn;
}

int64_t LaunchOrder::Enter(int process_set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queue_[process_set] = ++highest_;
}

void LaunchOrder::Agree(int process_set, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_[process_set] = number;
  highest_ = std::max(highest_, number);
}

bool LaunchOrder::IsFirst(int process_set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = [](const auto& entry) {
    return std::make_pair(entry.second, entry.first);
  };
  const auto first = std::min_element(
      queue_.begin(), queue_.end(),
      [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return first->first == process_set;
}

void LaunchOrder::Leave(int process_set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.erase(process_set);
}

}  // namespace tfring
