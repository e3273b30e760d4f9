#include "tfring_ops/transport/shared_memory/shared_memory.h"

#include <chrono>
#include <deque>
#include <functional>
#include <utility>

#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/shared_memory/shared_segment.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::unique_ptr<Transport> others,
                        const std::vector<SharedLink>& links, size_t ring_bytes,
                        std::shared_ptr<void> memory, double timeout_seconds)
      : memory_(std::move(memory)),
        others_(std::move(others)),
        timeout_seconds_(timeout_seconds),
        peers_(links.size(), nullptr) {
    for (size_t rank = 0; rank < links.size(); ++rank) {
      if (links[rank].outgoing == nullptr) continue;
      peers_[rank] = &linked_.emplace_back(links[rank], ring_bytes);
    }
  }

  int rank() const override { return others_->rank(); }
  int size() const override { return others_->size(); }
  int node_of(int peer) const override { return others_->node_of(peer); }

  OperationId StartSend(int peer, ConstBytes data) override {
    if (peers_[peer] == nullptr) {
      return Passed(others_->StartSend(peer, data), peer);
    }
    const OperationId request = Claim(peer);
    if (broken_.ok()) Allocate(*peers_[peer]);
    if (!broken_.ok()) return request;
    // The cast is safe: a send only reads its data.
    At(request).data = Bytes(const_cast<std::byte*>(data.data()), data.size());
    peers_[peer]->sends.push_back(request);
    MoveSends(*peers_[peer]);
    return request;
  }

  OperationId StartRecv(int peer, Bytes data) override {
    if (peers_[peer] == nullptr) {
      return Passed(others_->StartRecv(peer, data), peer);
    }
    const OperationId request = Claim(peer);
    if (!broken_.ok()) return request;
    At(request).data = data;
    peers_[peer]->receives.push_back(request);
    return request;
  }

  absl::StatusOr<bool> Test(OperationId request) override {
    if (request == kNoOperation) return true;
    MoveAll();
    Operation& operation = At(request);
    absl::StatusOr<bool> complete = operation.complete;
    if (!broken_.ok()) {
      complete = broken_;
    } else if (operation.passed != kNoOperation) {
      complete = others_->Test(operation.passed);
    } else if (!operation.status.ok()) {
      complete = operation.status;
    }
    if (!complete.ok() || *complete) {
      passed_count_ -= operation.passed != kNoOperation;
      free_.push_back(request);
    }
    return complete;
  }

  absl::Status Wait(OperationId request) override {
    if (request == kNoOperation) return absl::OkStatus();
    return WaitUntil(At(request).peer, [&] { return Test(request); });
  }

  void SetAttendant(std::function<absl::Status()> attend) override {
    attend_ = std::move(attend);
  }

  bool CanPeek(int peer) const override { return peers_[peer] != nullptr; }

  bool TakesDeviceMemory(int peer) const override {
    return peers_[peer] == nullptr && others_->TakesDeviceMemory(peer);
  }

  absl::StatusOr<ConstBytes> Peek(int peer, size_t message_bytes) override {
    ConstBytes part;
    TFRING_RETURN_IF_ERROR(WaitUntil(peer, [&]() -> absl::StatusOr<bool> {
      MoveAll();
      TFRING_RETURN_IF_ERROR(broken_);
      TFRING_ASSIGN_OR_RETURN(part, peers_[peer]->in.Peek(message_bytes));
      return !part.empty();
    }));
    return part;
  }

  void Release(int peer) override { peers_[peer]->in.Release(); }

  absl::Status Progress() override {
    MoveAll();
    CheckForAbort();
    return broken_;
  }

  void Abort(const absl::Status& reason) override {
    if (broken_.ok()) Break(reason);
  }

  bool HasAbandoned() const override { return others_->HasAbandoned(); }

 private:
  struct Operation {
    int peer = 0;
    Bytes data;
    OperationId passed = kNoOperation;  // if `others_` carries the message
    bool complete = false;
    absl::Status status;
  };
  // A peer that this rank shares memory with, and the messages in flight
  // between them, in order.
  struct Peer {
    Peer(const SharedLink& link, size_t ring_bytes)
        : outgoing(link.outgoing),
          channel_bytes(SharedChannel::Bytes(ring_bytes)),
          out(link.outgoing, ring_bytes),
          in(link.incoming, ring_bytes) {}

    SharedChannel* const outgoing;
    const size_t channel_bytes;
    bool is_allocated = false;  // what this rank writes
    ChannelWriter out;
    ChannelReader in;
    std::deque<OperationId> sends, receives;
  };

  // A wait looks often, and need not notice an abort by another rank at once.
  static constexpr int kMovesPerAbortCheck = 64;

  Operation& At(OperationId request) { return operations_[request - 1]; }

  OperationId Claim(int peer) {
    if (free_.empty()) {
      operations_.emplace_back();
      free_.push_back(operations_.size());
    }
    const OperationId request = free_.back();
    free_.pop_back();
    At(request) = Operation();
    At(request).peer = peer;
    return request;
  }

  OperationId Passed(OperationId passed, int peer) {
    const OperationId request = Claim(peer);
    At(request).passed = passed;
    ++passed_count_;
    return request;
  }

  // Allocates at the first message: most ranks of a node communicate with a few
  // peers, and in many process sets with none.
  void Allocate(Peer& peer) {
    if (peer.is_allocated) return;
    peer.is_allocated = true;
    if (absl::Status status = AllocatePages(peer.outgoing, peer.channel_bytes);
        !status.ok()) {
      Break(status);
    }
  }

  // Makes progress on all peers, not only the awaited one: that one may wait
  // for a second rank, and the second for this one.
  void MoveAll() {
    if (!broken_.ok()) return;
    for (Peer& peer : linked_) {
      MoveSends(peer);
      MoveReceives(peer);
    }
    if (++moves_ % kMovesPerAbortCheck == 0) return CheckForAbort();
    if (passed_count_ == 0) return;
    if (absl::Status status = others_->Progress(); !status.ok()) Break(status);
  }

  void CheckForAbort() {
    if (!broken_.ok()) return;
    if (absl::Status status = others_->Progress(); !status.ok()) {
      return Break(status);
    }
    for (const Peer& peer : linked_) {
      if (absl::Status reason = peer.in.closed(); !reason.ok()) {
        return Break(reason);
      }
    }
  }

  void MoveSends(Peer& peer) {
    const uint64_t position = peer.out.position();
    while (!peer.sends.empty()) {
      Operation& send = At(peer.sends.front());
      if (!peer.out.Write(send.data, peer.in.position())) break;
      send.complete = true;
      peer.sends.pop_front();
    }
    moved_bytes_ += peer.out.position() - position;
  }

  void MoveReceives(Peer& peer) {
    const uint64_t position = peer.in.position();
    while (!peer.receives.empty()) {
      Operation& receive = At(peer.receives.front());
      const absl::StatusOr<bool> complete = peer.in.Read(receive.data);
      if (complete.ok() && !*complete) break;
      receive.complete = true;
      receive.status = complete.status();
      peer.receives.pop_front();
    }
    moved_bytes_ += peer.in.position() - position;
  }

  // Calls `done` until it is true.  Gives up when nothing at all has moved for
  // too long.
  template <typename Done>
  absl::Status WaitUntil(int peer, const Done& done) {
    Clock::time_point standstill = Clock::now();
    for (Backoff backoff;; backoff.Pause()) {
      const uint64_t moved_bytes = moved_bytes_;
      TFRING_ASSIGN_OR_RETURN(const bool complete, done());
      if (complete) return absl::OkStatus();
      if (moved_bytes_ != moved_bytes) {
        standstill = Clock::now();
        backoff = Backoff();
      }
      if (!backoff.SeldomTurn()) continue;
      if (attend_) TFRING_RETURN_IF_ERROR(attend_());
      if (IsTooLong(Clock::now() - standstill, timeout_seconds_)) {
        return TimedOut(peer, timeout_seconds_);
      }
    }
  }

  // Shared memory and `others_` may both report an abort: the first report
  // counts.
  void Break(const absl::Status& reason) {
    broken_ = reason;
    for (Peer& peer : linked_) {
      peer.out.Close(reason);
      peer.sends.clear();
      peer.receives.clear();
    }
    others_->Abort(reason);
  }

  const std::shared_ptr<void> memory_;
  const std::unique_ptr<Transport> others_;
  const double timeout_seconds_;
  std::function<absl::Status()> attend_;  // may be empty
  std::deque<Peer> linked_;
  std::vector<Peer*> peers_;  // by rank; null: `others_`
  std::vector<Operation> operations_;
  std::vector<OperationId> free_;  // operations_ that are not in use
  int64_t passed_count_ = 0;       // operations that `others_` has in flight
  int64_t moves_ = 0;
  uint64_t moved_bytes_ = 0;
  absl::Status broken_;
};

}  // namespace

std::unique_ptr<Transport> MakeSharedMemoryTransport(
    std::unique_ptr<Transport> others, const std::vector<SharedLink>& links,
    size_t ring_bytes, std::shared_ptr<void> memory, double timeout_seconds) {
  return std::make_unique<SharedMemoryTransport>(
      std::move(others), links, ring_bytes, std::move(memory), timeout_seconds);
}

}  // namespace tfring
