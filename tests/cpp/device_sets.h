// Process sets whose ranks have a GPU each, and work on it at the same time.
#ifndef TESTS_CPP_DEVICE_SETS_H_
#define TESTS_CPP_DEVICE_SETS_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/nccl_engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/nccl/launch_order.h"

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
      : id_(id), ranks_(std::move(ranks)) {
    options.fusion_threshold_bytes = 0;
    job_ = std::make_unique<Job>(
        MakeInProcessTransports(size()), MakeInProcessTransports(size()),
        options, id, ranks_, /*on_lost=*/nullptr,
        [&](int index, ProcessSet& set) {
          set.make_device_lane =
              [place = LaunchPlace{orders[ranks_[index]], id_}](
                  const Options& of_rank_0, int32_t device, Transport& data) {
                return MakeNcclLane(of_rank_0, device, data, place);
              };
        });
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Engine& engine(int index) { return job_->engine(index); }

  // An allreduce, before which the rank with that index pauses.
  template <typename Pause>
  void Submit(const Pause& pause) {
    const std::string name = "gradient " + std::to_string(submitted_++);
    for (int index = 0; index < size(); ++index) {
      tensors_.push_back(
          std::make_unique<StreamedTensor>(index, ranks_[index]));
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
  std::unique_ptr<Job> job_;
  int submitted_ = 0;
  std::vector<std::unique_ptr<StreamedTensor>> tensors_;
};

}  // namespace tfring

#endif  // TESTS_CPP_DEVICE_SETS_H_
