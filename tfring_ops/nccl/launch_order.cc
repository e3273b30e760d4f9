#include "tfring_ops/nccl/launch_order.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/algorithms/pairwise/recursive_doubling.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/base/types.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"

namespace tfring {
namespace {

// Returns the highest of the ranks' numbers.
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
    KeepForever(std::move(number));
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
                                                     double timeout_seconds,
                                                     const Clock& clock) {
  if (!several_) return Turn();
  if (HasTurn(process_set)) return Turn(this, process_set, /*is_part=*/true);
  const int64_t proposal = Enter(process_set);
  // The turn leaves the queue after an error, too.
  Turn turn(this, process_set, /*is_part=*/false);
  TFRING_ASSIGN_OR_RETURN(const int64_t number, Highest(host, proposal));
  Agree(process_set, number);
  const Clock::time_point begin = clock.Now();
  for (Backoff backoff; !Begins(process_set); backoff.Pause()) {
    TFRING_RETURN_IF_ERROR(host.Progress());
    if (backoff.SeldomTurn() &&
        IsTooLong(clock.Now() - begin, timeout_seconds)) {
      return absl::DeadlineExceededError(
          absl::StrCat("a collective of another process set has not been "
                       "launched on the GPU for ",
                       timeout_seconds, " s"));
    }
  }
  return turn;
}

bool LaunchOrder::HasTurn(int process_set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_turn_ == process_set;
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

bool LaunchOrder::Begins(int process_set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = [](const auto& entry) {
    return std::make_pair(entry.second, entry.first);
  };
  const auto first = std::min_element(
      queue_.begin(), queue_.end(),
      [&](const auto& a, const auto& b) { return place(a) < place(b); });
  if (first->first != process_set) return false;
  has_turn_ = process_set;
  return true;
}

void LaunchOrder::Leave(int process_set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.erase(process_set);
  if (has_turn_ == process_set) has_turn_.reset();
}

std::function<absl::StatusOr<std::shared_ptr<void>>()> TakesTurns(
    LaunchPlace place, Transport& host, double timeout_seconds) {
  return [place = std::move(place), &host,
          timeout_seconds]() -> absl::StatusOr<std::shared_ptr<void>> {
    TFRING_ASSIGN_OR_RETURN(LaunchOrder::Turn turn,
                            place.Await(host, timeout_seconds));
    return std::make_shared<LaunchOrder::Turn>(std::move(turn));
  };
}

}  // namespace tfring
