// A rank that stops in the middle of something.
#ifndef TESTS_CPP_GATE_H_
#define TESTS_CPP_GATE_H_

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "tfring_ops/transport/forwarding.h"

namespace tfring {

// Stops every thread of a rank at its next operation, as SIGSTOP does.
class Gate {
 public:
  // Closes after this number of sends on the data transports.
  void CloseAfter(int operations) { left_ = operations; }
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = has_closed_ = true;
    happened_.notify_all();
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = false;
    opened_.notify_all();
  }
  void WaitUntilClosed() {
    std::unique_lock<std::mutex> lock(mutex_);
    happened_.wait(lock, [this] { return has_closed_; });
  }

  void PassData() {
    if (left_ > 0 && --left_ == 0) Close();
    Pass();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return !closed_; });
  }

 private:
  std::atomic<int> left_{0};
  std::mutex mutex_;
  std::condition_variable opened_, happened_;
  bool closed_ = false, has_closed_ = false;
};

class GatedTransport final : public ForwardingTransport {
 public:
  GatedTransport(std::unique_ptr<Transport> inner, Gate& gate, bool is_data)
      : ForwardingTransport(std::move(inner)), gate_(gate), is_data_(is_data) {}

  OperationId StartSend(int peer, ConstBytes data) override {
    is_data_ ? gate_.PassData() : gate_.Pass();
    return ForwardingTransport::StartSend(peer, data);
  }
  absl::StatusOr<bool> Test(OperationId request) override {
    gate_.Pass();
    return ForwardingTransport::Test(request);
  }
  absl::Status Wait(OperationId request) override {
    gate_.Pass();
    return ForwardingTransport::Wait(request);
  }

 private:
  Gate& gate_;
  const bool is_data_;
};

}  // namespace tfring

#endif  // TESTS_CPP_GATE_H_
