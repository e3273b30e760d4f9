#include "tfring_ops/transport/attended.h"

#include <chrono>
#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPeriod{20};

class AttendedTransport final : public Transport {
 public:
  AttendedTransport(std::unique_ptr<Transport> inner,
                    std::function<absl::Status()> attend)
      : inner_(std::move(inner)), attend_(std::move(attend)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int node_of(int peer) const override { return inner_->node_of(peer); }
  bool TakesDeviceMemory(int peer) const override {
    return inner_->TakesDeviceMemory(peer);
  }

  Request StartSend(int peer, ConstBytes data) override {
    return inner_->StartSend(peer, data);
  }

  Request StartRecv(int peer, Bytes data) override {
    return inner_->StartRecv(peer, data);
  }

  absl::StatusOr<bool> Test(Request request) override {
    return inner_->Test(request);
  }

  absl::Status Wait(Request request) override {
    TFRING_RETURN_IF_ERROR(Attend());
    return inner_->Wait(request);
  }

  bool CanPeek(int peer) const override { return inner_->CanPeek(peer); }

  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    TFRING_RETURN_IF_ERROR(Attend());
    return inner_->Peek(peer, message_bytes);
  }

  void Release(int peer) override { inner_->Release(peer); }

  absl::Status Progress() override { return inner_->Progress(); }

  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  absl::Status Attend() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return absl::OkStatus();
    next_ = now + kPeriod;
    return attend_();
  }

  const std::unique_ptr<Transport> inner_;
  const std::function<absl::Status()> attend_;
  Clock::time_point next_;
};

}  // namespace

std::unique_ptr<Transport> MakeAttendedTransport(
    std::unique_ptr<Transport> inner, std::function<absl::Status()> attend) {
  return std::make_unique<AttendedTransport>(std::move(inner),
                                             std::move(attend));
}

}  // namespace tfring
