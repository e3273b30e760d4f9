// Process sets that work at the same time, with one GPU per rank.
#ifndef TESTS_CPP_DEVICE_SETS_H_
#define TESTS_CPP_DEVICE_SETS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/nccl_engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/nccl/launch_order.h"
#include "tfring_ops/runtime/device_lane.h"

namespace tfring {

using Orders = std::vector<std::shared_ptr<LaunchOrder>>;  // by rank

inline Orders MakeOrders(int size) {
  Orders orders;
  for (int rank = 0; rank < size; ++rank) {
    orders.push_back(std::make_shared<LaunchOrder>());
  }
  return orders;
}

// The engines of a process set with some of the ranks, in that order.
class DeviceSet {
 public:
  DeviceSet(int id, std::vector<int32_t> ranks, const Orders& orders,
            Options options)
      : id_(id), ranks_(std::move(ranks)), clocks_(size()) {
    options.fusion_threshold_bytes = 0;
    job_ = std::make_unique<Job>(
        MakeInProcessTransports(size()), MakeInProcessTransports(size()),
        options, id, ranks_, /*on_lost=*/nullptr,
        [&](int index, ProcessSet& set) {
          set.clock = &clocks_.of(index);
          set.make_device_lane =
              [place = LaunchPlace{orders[ranks_[index]], id_, set.clock}](
                  const Options& of_rank_0, int32_t device, Transport& data) {
                return MakeDeviceLane(of_rank_0, device, data, place);
              };
        });
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Engine& engine(int index) { return job_->engine(index); }

  // Makes the lanes, beside no other set.
  void Meet() {
    Submit([](int) { return std::chrono::microseconds(); });
    ExpectSums();
  }

  // An allreduce, before which each rank waits, by its index.
  void SubmitBehind(const std::function<void(int index)>& wait) {
    Submit([](int) { return std::chrono::microseconds(); }, wait);
  }

  const RankClocks& clocks() const { return clocks_; }

  // Waits until every rank that has not ended has looked, and lets `time` pass.
  void Advance(Clock::duration time) {
    std::vector<int> indices(size());
    std::iota(indices.begin(), indices.end(), 0);
    clocks_.AwaitLooks(indices, [this] {
      return std::any_of(tensors_.begin(), tensors_.end(), [](const auto& one) {
        return one->outcome.calls() > 0 && !one->outcome.Wait().ok();
      });
    });
    clocks_.Advance(time);
  }

  // An allreduce, before which the rank with that index pauses.
  template <typename Pause>
  void Submit(const Pause& pause,
              const std::function<void(int index)>& wait = nullptr) {
    const std::string name = "gradient " + std::to_string(submitted_++);
    for (int index = 0; index < size(); ++index) {
      tensors_.push_back(
          std::make_unique<StreamedTensor>(index, ranks_[index]));
      if (wait) {
        tensors_.back()->change = [wait, index](TensorEntry& entry) {
          entry.on_start = [wait, index,
                            start = std::move(entry.on_start)](void* stream) {
            wait(index);
            return start(stream);
          };
        };
      }
      tensors_.back()->SubmitTo(job_->engine(index), name, pause(index));
    }
  }

  void Shutdown() { job_->Shutdown(); }

  std::vector<absl::Status> Outcomes() {
    std::vector<absl::Status> outcomes;
    for (const auto& tensor : tensors_) {
      outcomes.push_back(tensor->outcome.Wait());
    }
    return outcomes;
  }

  void ExpectSums() {
    for (const auto& tensor : tensors_) {
      const absl::Status status = tensor->outcome.Wait();
      ASSERT_TRUE(status.ok()) << "process set " << id_ << ": " << status;
      EXPECT_TRUE(tensor->IsSumOver(size())) << "process set " << id_;
    }
  }

 private:
  const int id_;
  const std::vector<int32_t> ranks_;
  RankClocks clocks_;
  std::unique_ptr<Job> job_;
  int submitted_ = 0;
  std::vector<std::unique_ptr<StreamedTensor>> tensors_;
};

}  // namespace tfring

#endif  // TESTS_CPP_DEVICE_SETS_H_
