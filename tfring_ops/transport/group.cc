#include "tfring_ops/transport/group.h"

#include <utility>

namespace tfring {
namespace {

class GroupTransport final : public Transport {
 public:
  GroupTransport(Transport& whole, std::vector<int> members)
      : whole_(whole), members_(std::move(members)) {
    while (members_[rank_] != whole_.rank()) ++rank_;
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int node_of(int peer) const override { return whole_.node_of(In(peer)); }
  bool TakesDeviceMemory(int peer) const override {
    return whole_.TakesDeviceMemory(In(peer));
  }

  OperationId StartSend(int peer, ConstBytes data) override {
    return whole_.StartSend(In(peer), data);
  }
  OperationId StartRecv(int peer, Bytes data) override {
    return whole_.StartRecv(In(peer), data);
  }
  absl::StatusOr<bool> Test(OperationId request) override {
    return whole_.Test(request);
  }
  absl::Status Wait(OperationId request) override {
    return whole_.Wait(request);
  }

  bool CanPeek(int peer) const override { return whole_.CanPeek(In(peer)); }
  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    return whole_.Peek(In(peer), message_bytes);
  }
  void Release(int peer) override { whole_.Release(In(peer)); }
  OperationId ReleaseAndSend(int from, int to, ConstBytes data) override {
    return whole_.ReleaseAndSend(In(from), In(to), data);
  }
  bool PrefersPeek(int peer) const override {
    return whole_.PrefersPeek(In(peer));
  }

  absl::Status Progress() override { return whole_.Progress(); }
  void Abort(const absl::Status& reason) override { whole_.Abort(reason); }
  bool HasAbandoned() const override { return whole_.HasAbandoned(); }

 private:
  int In(int peer) const { return members_[peer]; }

  Transport& whole_;
  const std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace

std::unique_ptr<Transport> MakeGroupTransport(Transport& whole,
                                              std::vector<int> members) {
  return std::make_unique<GroupTransport>(whole, std::move(members));
}

}  // namespace tfring
