// A transport around another one.  It forwards all calls that a derived class
// does not override.
#ifndef TFRING_OPS_TRANSPORT_FORWARDING_H_
#define TFRING_OPS_TRANSPORT_FORWARDING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class ForwardingTransport : public Transport {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int node_of(int peer) const override { return inner_->node_of(peer); }

  OperationId StartSend(int peer, ConstBytes data) override {
    return inner_->StartSend(peer, data);
  }
  OperationId StartRecv(int peer, Bytes data) override {
    return inner_->StartRecv(peer, data);
  }
  absl::StatusOr<bool> Test(OperationId request) override {
    return inner_->Test(request);
  }
  absl::Status Wait(OperationId request) override {
    return inner_->Wait(request);
  }

  void SetAttendant(std::function<absl::Status()> attend) override {
    inner_->SetAttendant(std::move(attend));
  }

  bool CanPeek(int peer) const override { return inner_->CanPeek(peer); }
  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    return inner_->Peek(peer, message_bytes);
  }
  void Release(int peer) override { inner_->Release(peer); }
  // ReleaseAndSend calls the derived class's two parts.

  absl::Status Export(Bytes memory) override { return inner_->Export(memory); }
  MessageKind CountAs(MessageKind kind) override {
    return inner_->CountAs(kind);
  }
  int64_t counted_bytes() const override { return inner_->counted_bytes(); }
  bool TakesDeviceMemory(int peer) const override {
    return inner_->TakesDeviceMemory(peer);
  }
  absl::Status Progress() override { return inner_->Progress(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }
  bool HasAbandoned() const override { return inner_->HasAbandoned(); }

 protected:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner)
      : inner_(std::move(inner)) {}

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_FORWARDING_H_
