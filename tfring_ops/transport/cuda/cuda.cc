#include "tfring_ops/transport/cuda/cuda.h"

#include <chrono>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/cuda/cuda_link.h"
#include "tfring_ops/transport/cuda/cuda_links.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

class CudaTransport final : public Transport {
 public:
  CudaTransport(std::unique_ptr<CudaLinks> links, const CudaDevice& device,
                double timeout_seconds)
      : links_(std::move(links)),
        device_(device),
        host_(links_->context().host),
        timeout_seconds_(timeout_seconds) {
    device_.WaitBy([this] { return WaitForStreams(); });
  }

  ~CudaTransport() override {
    device_.WaitBy(nullptr);
    const CudaScope scope(links_->context().driver, links_->context().context);
    if (broken_.ok()) Note(links_->Quiesce());
    links_.reset();
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int node_of(int peer) const override { return host_.node_of(peer); }
  bool TakesDeviceMemory(int /*peer*/) const override { return true; }
  // CUDA IPC moves bytes without a message of the host's.
  MessageKind CountAs(MessageKind kind) override { return host_.CountAs(kind); }
  int64_t counted_bytes() const override { return host_.counted_bytes(); }

  OperationId StartSend(int peer, ConstBytes data) override {
    // The cast is safe: a send only reads its data.
    return Start(peer, const_cast<std::byte*>(data.data()), data.size(),
                 &CudaLink::Send);
  }
  OperationId StartRecv(int peer, Bytes data) override {
    return Start(peer, data.data(), data.size(), &CudaLink::Receive);
  }

  absl::StatusOr<bool> Test(OperationId request) override {
    if (request == kNoOperation) return true;
    MoveAll();
    const CudaMessage& message = messages_[request - 1];
    const bool complete = message.complete;
    if (complete && message.last_part > 0 && broken_.ok()) {
      const Scope scope(*links_);
      Note(links_->link(message.peer).AwaitSent(message));
      Flush();
    }
    if (complete || !broken_.ok()) free_.push_back(request);
    if (!broken_.ok()) return broken_;
    return complete;
  }

  absl::Status Wait(OperationId request) override {
    if (request == kNoOperation) return absl::OkStatus();
    return WaitUntil([&] { return Test(request); });
  }

  bool CanPeek(int peer) const override {
    return peer != rank() && links_->link(peer).CanPeek();
  }
  // Peek saves calls: a release together with a send is one call of the driver.
  bool PrefersPeek(int peer) const override { return CanPeek(peer); }

  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    ConstBytes part;
    TFRING_RETURN_IF_ERROR(WaitUntil([&]() -> absl::StatusOr<bool> {
      MoveAll();
      TFRING_RETURN_IF_ERROR(broken_);
      const Scope scope(*links_);
      TFRING_ASSIGN_OR_RETURN(part, links_->link(peer).Peek(message_bytes));
      TFRING_RETURN_IF_ERROR(links_->Flush());
      return !part.empty();
    }));
    return part;
  }

  void Release(int peer) override {
    const Scope scope(*links_);
    Note(links_->link(peer).Release());
    Flush();
  }

  OperationId ReleaseAndSend(int from, int to, ConstBytes data) override {
    {
      const Scope scope(*links_);
      Note(links_->link(from).Release());
    }
    return StartSend(to, data);
  }

  absl::Status Export(Bytes memory) override {
    if (!broken_.ok()) return broken_;
    const Scope scope(*links_);
    Note(links_->Export(memory));
    return broken_;
  }

  absl::Status Progress() override {
    MoveAll();
    return broken_;
  }

  void Abort(const absl::Status& reason) override {
    if (!broken_.ok()) return;
    broken_ = reason;
    host_.Abort(reason);
    // The GPU may still use buffers that their owners want back.
    const Scope scope(*links_);
    has_abandoned_ = !links_->StopWaiting();
  }

  bool HasAbandoned() const override {
    return has_abandoned_ || host_.HasAbandoned();
  }

 private:
  struct Scope : CudaScope {
    explicit Scope(const CudaLinks& links)
        : CudaScope(links.context().driver, links.context().context) {}
  };

  OperationId Start(int peer, std::byte* data, size_t bytes,
                    void (CudaLink::*add)(CudaMessage&)) {
    if (free_.empty()) {
      messages_.emplace_back();
      free_.push_back(messages_.size());
    }
    const OperationId request = free_.back();
    free_.pop_back();
    CudaMessage& message = messages_[request - 1];
    message = CudaMessage();
    message.data = data;
    message.bytes = bytes;
    message.peer = peer;
    if (!broken_.ok()) return request;
    const Scope scope(*links_);
    (links_->link(peer).*add)(message);
    Note(links_->link(peer).Move());
    Flush();
    return request;
  }

  void Flush() {
    if (broken_.ok()) Note(links_->Flush());
  }

  // See Note [Waits of the driver] in kernels/cuda.h.
  absl::Status WaitForStreams() {
    if (broken_.ok()) {
      const Scope scope(*links_);
      Note(tfring::WaitForStreams(links_->context()));
    }
    return broken_;
  }

  // Keeps the first error.  A rank that ends aborts before it frees memory that
  // peers may be about to open, so its reason comes first.
  void Note(const absl::Status& status) {
    if (!broken_.ok() || status.ok()) return;
    const absl::Status ended = host_.Progress();
    Abort(ended.ok() ? status : ended);
  }

  // Makes progress on all links, not only the awaited one: that peer may wait
  // for a second rank, and the second for this one.
  void MoveAll() {
    if (!broken_.ok()) return;
    const Scope scope(*links_);
    Note(scope.status());
    for (int peer = 0; peer < size() && broken_.ok(); ++peer) {
      if (peer != rank()) Note(links_->link(peer).Move());
    }
    Flush();
    if (broken_.ok()) Note(host_.Progress());
  }

  template <typename Done>
  absl::Status WaitUntil(const Done& done) {
    const Clock::time_point begin = Clock::now();
    for (Backoff backoff;; backoff.Pause()) {
      TFRING_ASSIGN_OR_RETURN(const bool complete, done());
      if (complete) return absl::OkStatus();
      if (backoff.SeldomTurn() &&
          IsTooLong(Clock::now() - begin, timeout_seconds_)) {
        return absl::DeadlineExceededError(absl::StrCat(
            "no message between GPUs for ", timeout_seconds_, " s"));
      }
    }
  }

  std::unique_ptr<CudaLinks> links_;
  const CudaDevice& device_;
  Transport& host_;
  const double timeout_seconds_;
  std::deque<CudaMessage> messages_;
  std::vector<OperationId> free_;  // messages_ that are not in use
  absl::Status broken_;
  bool has_abandoned_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeCudaTransport(
    const CudaDevice& device, Transport& host, const Options& options) {
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<CudaLinks> links,
                          CudaLinks::Negotiate(device, host, options));
  return std::make_unique<CudaTransport>(std::move(links), device,
                                         options.transport_timeout_seconds());
}

}  // namespace tfring
