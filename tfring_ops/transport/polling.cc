#include "tfring_ops/transport/polling.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/forwarding.h"

namespace tfring {
namespace {

constexpr std::chrono::microseconds kPeriod{20};
// A look at many ranks may take longer than that.  Then the next look waits
// sixteen times as long, up to a limit, because this thread may just have lost
// its core.
constexpr int kShare = 16;
constexpr std::chrono::milliseconds kLongestPause{10};

class PollingTransport final : public ForwardingTransport {
 public:
  PollingTransport(std::unique_ptr<Transport> inner,
                   std::function<absl::Status()> attend, const Clock& clock)
      : ForwardingTransport(std::move(inner)),
        attend_(std::move(attend)),
        clock_(clock) {
    SetAttendant([this] { return Attend(); });
  }

  absl::Status Wait(OperationId request) override {
    TFRING_RETURN_IF_ERROR(Attend());
    return ForwardingTransport::Wait(request);
  }

  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    TFRING_RETURN_IF_ERROR(Attend());
    return ForwardingTransport::Peek(peer, message_bytes);
  }

  absl::Status Progress() override {
    TFRING_RETURN_IF_ERROR(Attend());
    return ForwardingTransport::Progress();
  }

 private:
  absl::Status Attend() {
    const Clock::time_point begin = clock_.Now();
    if (begin < next_) return absl::OkStatus();
    const absl::Status status = attend_();
    const Clock::time_point end = clock_.Now();
    next_ = std::max<Clock::time_point>(
        begin + kPeriod,
        end + std::min<Clock::duration>(kShare * (end - begin), kLongestPause));
    return status;
  }

  const std::function<absl::Status()> attend_;
  const Clock& clock_;
  Clock::time_point next_;
};

}  // namespace

std::unique_ptr<Transport> MakePollingTransport(
    std::unique_ptr<Transport> inner, std::function<absl::Status()> attend,
    const Clock& clock) {
  return std::make_unique<PollingTransport>(std::move(inner), std::move(attend),
                                            clock);
}

}  // namespace tfring
