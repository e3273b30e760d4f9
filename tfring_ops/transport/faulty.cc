#include "tfring_ops/transport/faulty.h"

#include <utility>

namespace tfring {
namespace {

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, int64_t failing_operation)
      : inner_(std::move(inner)), failing_operation_(failing_operation) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int node_of(int peer) const override { return inner_->node_of(peer); }
  bool TakesDeviceMemory(int peer) const override {
    return inner_->TakesDeviceMemory(peer);
  }

  Request StartSend(int peer, ConstBytes data) override {
    return Fails() ? kFailed : inner_->StartSend(peer, data);
  }

  Request StartRecv(int peer, Bytes data) override {
    return Fails() ? kFailed : inner_->StartRecv(peer, data);
  }

  absl::StatusOr<bool> Test(Request request) override {
    if (request == kFailed) return failure_;
    return inner_->Test(request);
  }

  absl::Status Wait(Request request) override {
    if (request == kFailed) return failure_;
    return inner_->Wait(request);
  }

  bool CanPeek(int peer) const override { return inner_->CanPeek(peer); }

  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    if (Fails()) return failure_;
    return inner_->Peek(peer, message_bytes);
  }

  void Release(int peer) override { inner_->Release(peer); }

  absl::Status Progress() override { return inner_->Progress(); }

  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  static constexpr Request kFailed = ~Request{0};

  bool Fails() { return ++operations_ >= failing_operation_; }

  const std::unique_ptr<Transport> inner_;
  const int64_t failing_operation_;
  const absl::Status failure_ = absl::UnavailableError("the wire was cut");
  int64_t operations_ = 0;
};

}  // namespace

std::unique_ptr<Transport> MakeFaultyTransport(std::unique_ptr<Transport> inner,
                                               int64_t failing_operation) {
  return std::make_unique<FaultyTransport>(std::move(inner), failing_operation);
}

}  // namespace tfring
