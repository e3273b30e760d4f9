#include "tests/cpp/in_process_transport.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr std::chrono::milliseconds kLook{5};

struct Operation {
  Operation(std::byte* data, size_t size) : data(data), size(size) {}

  std::byte* const data;
  const size_t size;
  bool complete = false;
  absl::Status status;
  std::condition_variable completed;
};

// The state that all ranks share.  Thread-safe.
class Fabric {
 public:
  using Handle = std::shared_ptr<Operation>;
  enum class Direction { kSend, kRecv };

  Handle Start(int from, int to, Direction direction, std::byte* data,
               size_t size) {
    auto operation = std::make_shared<Operation>(data, size);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.ok()) {
      operation->complete = true;
      operation->status = broken_;
      return operation;
    }
    Channel& channel = channels_[{from, to}];
    (direction == Direction::kSend ? channel.sends : channel.recvs)
        .push_back(operation);
    Match(channel);
    return operation;
  }

  absl::StatusOr<bool> Test(const Handle& operation) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (operation->complete && !operation->status.ok()) {
      return operation->status;
    }
    return operation->complete;
  }

  absl::Status Wait(const Handle& operation, int rank,
                    const std::function<absl::Status()>& attend) {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!operation->completed.wait_for(
        lock, kLook, [&] { return operation->complete; })) {
      if (std::chrono::steady_clock::now() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank, " waited too long"));
      }
      lock.unlock();
      if (attend) TFRING_RETURN_IF_ERROR(attend());
      lock.lock();
    }
    return operation->status;
  }

  absl::Status broken() {
    std::lock_guard<std::mutex> lock(mutex_);
    return broken_;
  }

  void Break(const absl::Status& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
    for (auto& [pair, channel] : channels_) {
      for (auto* queue : {&channel.sends, &channel.recvs}) {
        for (const Handle& operation : *queue) Complete(*operation, reason);
        queue->clear();
      }
    }
  }

 private:
  struct Channel {
    std::deque<Handle> sends, recvs;
  };

  void Match(Channel& channel) {
    while (!channel.sends.empty() && !channel.recvs.empty()) {
      const Handle send = std::move(channel.sends.front());
      const Handle recv = std::move(channel.recvs.front());
      channel.sends.pop_front();
      channel.recvs.pop_front();
      absl::Status status;
      if (send->size != recv->size) {
        status = absl::InternalError(absl::StrCat("a message of ", send->size,
                                                  " bytes met a receive of ",
                                                  recv->size));
      } else if (send->size > 0) {
        std::memcpy(recv->data, send->data, send->size);
      }
      Complete(*send, status);
      Complete(*recv, status);
    }
  }

  static void Complete(Operation& operation, const absl::Status& status) {
    operation.complete = true;
    operation.status = status;
    operation.completed.notify_one();
  }

  std::mutex mutex_;
  std::map<std::pair<int, int>, Channel> channels_;
  absl::Status broken_;
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Fabric> fabric, int rank,
                     std::vector<int> nodes)
      : fabric_(std::move(fabric)), rank_(rank), nodes_(std::move(nodes)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(nodes_.size()); }
  int node_of(int peer) const override { return nodes_[peer]; }
  bool TakesDeviceMemory(int /*peer*/) const override { return false; }

  OperationId StartSend(int peer, ConstBytes data) override {
    return Keep(fabric_->Start(rank_, peer, Fabric::Direction::kSend,
                               const_cast<std::byte*>(data.data()),
                               data.size()));
  }

  OperationId StartRecv(int peer, Bytes data) override {
    return Keep(fabric_->Start(peer, rank_, Fabric::Direction::kRecv,
                               data.data(), data.size()));
  }

  absl::StatusOr<bool> Test(OperationId request) override {
    if (request == kNoOperation) return true;
    auto found = operations_.find(request);
    absl::StatusOr<bool> complete = fabric_->Test(found->second);
    if (!complete.ok() || *complete) operations_.erase(found);
    return complete;
  }

  absl::Status Wait(OperationId request) override {
    if (request == kNoOperation) return absl::OkStatus();
    auto found = operations_.find(request);
    const Fabric::Handle operation = std::move(found->second);
    operations_.erase(found);
    return fabric_->Wait(operation, rank_, attend_);
  }

  void SetAttendant(std::function<absl::Status()> attend) override {
    attend_ = std::move(attend);
  }

  absl::Status Progress() override { return fabric_->broken(); }

  void Abort(const absl::Status& reason) override { fabric_->Break(reason); }

 private:
  OperationId Keep(Fabric::Handle operation) {
    operations_.emplace(++last_request_, std::move(operation));
    return last_request_;
  }

  const std::shared_ptr<Fabric> fabric_;
  const int rank_;
  const std::vector<int> nodes_;  // by rank
  std::function<absl::Status()> attend_;
  OperationId last_request_ = kNoOperation;
  std::unordered_map<OperationId, Fabric::Handle> operations_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(
    const std::vector<int>& nodes) {
  const int size = static_cast<int>(nodes.size());
  auto fabric = std::make_shared<Fabric>();
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(
        std::make_unique<InProcessTransport>(fabric, rank, nodes));
  }
  return transports;
}

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int size) {
  return MakeInProcessTransports(std::vector<int>(size, 0));
}

}  // namespace tfring
