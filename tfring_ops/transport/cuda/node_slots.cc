#include "tfring_ops/transport/cuda/node_slots.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// Two that the sender's GPU fills while the receiver's empties two.
constexpr int kNodeSlots = 4;

}  // namespace

// Of the parts from one rank to another.
struct NodeSlots::Numbers {
  // By the sender.
  alignas(64) std::atomic<uint64_t> written;  // lie, or have lain, in a slot
  SegmentAddress slots;  // from the first that is written on
  // Of the message that the part in each slot belongs to.
  std::array<uint64_t, kNodeSlots> message_bytes;
  // By the receiver.
  alignas(64) std::atomic<uint64_t> taken;
};

absl::StatusOr<std::unique_ptr<NodeSlots>> NodeSlots::Create(
    const CudaDriver& driver, int peers) {
  TFRING_ASSIGN_OR_RETURN(
      std::unique_ptr<PinnedSegment> segment,
      PinnedSegment::Create(driver, peers * sizeof(Numbers)));
  return std::unique_ptr<NodeSlots>(new NodeSlots(std::move(segment), peers));
}

absl::StatusOr<std::unique_ptr<NodeSlots>> NodeSlots::Open(
    const CudaDriver& driver, const Offer& offer) {
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<PinnedSegment> segment,
                          PinnedSegment::Open(driver, offer.segment,
                                              offer.peers * sizeof(Numbers)));
  return std::unique_ptr<NodeSlots>(
      new NodeSlots(std::move(segment), offer.peers));
}

NodeSlots::Numbers& NodeSlots::to_peer(int index) const {
  return reinterpret_cast<Numbers*>(segment_->data())[index];
}

namespace {

// Adds what to do where memory is short.
absl::Status Explained(const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat(
          "memory that GPUs of a node share by the host: ", status.message(),
          ". TFRING_SHARED_MEMORY=0 does without, and a smaller "
          "TFRING_DEVICE_SEGMENT_BYTES takes less"));
}

class NodeLink final : public CudaLink {
 public:
  NodeLink(const CudaLinkContext& context, const NodeSlots& own, int index,
           int peer)
      : context_(context), peer_(peer), outgoing_(own.to_peer(index)) {
    for (int slot = 0; slot < kNodeSlots; ++slot) {
      filled_[slot] = std::make_unique<CudaMark>(context);
      emptied_[slot] = std::make_unique<CudaMark>(context);
    }
  }

  absl::Status Open(const NodeSlots::Offer& offer) {
    TFRING_ASSIGN_OR_RETURN(peers_, NodeSlots::Open(context_.driver, offer));
    incoming_ = &peers_->to_peer(offer.index);
    return absl::OkStatus();
  }

  void Send(CudaMessage& message) override { sends_.push_back(&message); }
  void Receive(CudaMessage& message) override { receives_.push_back(&message); }

  absl::Status Move() override {
    TFRING_RETURN_IF_ERROR(MoveReceives());
    return MoveSends();
  }

 private:
  absl::Status MoveSends() {
    while (!sends_.empty() &&
           filling_ - outgoing_.taken.load(std::memory_order_acquire) <
               kNodeSlots) {
      TFRING_RETURN_IF_ERROR(StartFilling(*sends_.front()));
      CudaMessage& message = *sends_.front();
      if (message.started == message.bytes) sends_.pop_front();
    }
    while (!parts_.empty()) {
      TFRING_ASSIGN_OR_RETURN(const bool filled,
                              filled_[written_ % kNodeSlots]->Done());
      if (!filled) break;
      outgoing_.written.store(++written_, std::memory_order_release);
      FinishPart(*parts_.front());
      parts_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status StartFilling(CudaMessage& message) {
    if (own_slots_ == nullptr) {
      // The driver may wait for the GPU, which waits for no rank here.
      auto made = PinnedSegment::Create(context_.driver, SlotsBytes());
      if (!made.ok()) return Explained(made.status());
      own_slots_ = *std::move(made);
      outgoing_.slots = own_slots_->address();
    }
    if (message.started == 0) {
      TFRING_RETURN_IF_ERROR(FollowStream(context_.outgoing));
    }
    const uint64_t slot = filling_ % kNodeSlots;
    const size_t bytes = message.NextPart(context_.host_part_bytes);
    if (bytes > 0) {
      TFRING_RETURN_IF_ERROR(context_.driver.cuMemcpyDtoHAsync(
          own_slots_->data() + slot * context_.host_part_bytes,
          DeviceAddress(message.data + message.started), bytes,
          context_.outgoing));
    }
    TFRING_RETURN_IF_ERROR(filled_[slot]->Record(context_.outgoing));
    outgoing_.message_bytes[slot] = message.bytes;
    message.started += bytes;
    parts_.push_back(&message);
    ++filling_;
    return absl::OkStatus();
  }

  absl::Status MoveReceives() {
    while (taken_ < emptying_) {
      TFRING_ASSIGN_OR_RETURN(const bool emptied,
                              emptied_[taken_ % kNodeSlots]->Done());
      if (!emptied) break;
      incoming_->taken.store(++taken_, std::memory_order_release);
    }
    while (!receives_.empty() &&
           emptying_ < incoming_->written.load(std::memory_order_acquire)) {
      TFRING_RETURN_IF_ERROR(StartEmptying(*receives_.front()));
      CudaMessage& message = *receives_.front();
      if (message.complete) receives_.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status StartEmptying(CudaMessage& message) {
    if (peers_slots_ == nullptr) {
      auto opened =
          PinnedSegment::Open(context_.driver, incoming_->slots, SlotsBytes());
      if (!opened.ok()) return Explained(opened.status());
      peers_slots_ = *std::move(opened);
    }
    const uint64_t slot = emptying_ % kNodeSlots;
    if (incoming_->message_bytes[slot] != message.bytes) {
      return absl::InternalError(
          absl::StrCat("rank ", peer_, " sent ", incoming_->message_bytes[slot],
                       " bytes where ", message.bytes, " were expected"));
    }
    if (message.started == 0) {
      // The stream has read what is overwritten.
      TFRING_RETURN_IF_ERROR(FollowStream(context_.incoming));
    }
    const size_t bytes = message.NextPart(context_.host_part_bytes);
    if (bytes > 0) {
      TFRING_RETURN_IF_ERROR(context_.driver.cuMemcpyHtoDAsync(
          DeviceAddress(message.data + message.started),
          peers_slots_->data() + slot * context_.host_part_bytes, bytes,
          context_.incoming));
    }
    TFRING_RETURN_IF_ERROR(emptied_[slot]->Record(context_.incoming));
    message.started += bytes;
    ++emptying_;
    FinishPart(message);
    if (!message.complete) return absl::OkStatus();
    // Copies are done in order: with this one all of the message is there.
    return emptied_[slot]->Await(context_.stream);
  }

  // `stream` goes on when all that the buffers' stream has been asked for is
  // done.
  absl::Status FollowStream(CUstream stream) {
    TFRING_RETURN_IF_ERROR(asked_.Record(context_.stream));
    return asked_.Await(stream);
  }

  void FinishPart(CudaMessage& message) const {
    message.complete =
        ++message.finished == message.Parts(context_.host_part_bytes);
  }

  size_t SlotsBytes() const { return kNodeSlots * context_.host_part_bytes; }

  const CudaLinkContext& context_;
  const int peer_;
  CudaMark asked_{context_};

  NodeSlots::Numbers& outgoing_;
  std::unique_ptr<PinnedSegment> own_slots_;  // from the first send on
  std::deque<CudaMessage*> sends_;            // with parts left to start
  std::deque<CudaMessage*> parts_;            // that are being copied, in order
  uint64_t filling_ = 0;  // parts whose copy has been asked for
  uint64_t written_ = 0;  // of them, over
  std::array<std::unique_ptr<CudaMark>, kNodeSlots> filled_;

  std::unique_ptr<NodeSlots> peers_;
  NodeSlots::Numbers* incoming_ = nullptr;
  std::unique_ptr<PinnedSegment> peers_slots_;  // from the first receive on
  std::deque<CudaMessage*> receives_;           // with parts left to start
  uint64_t emptying_ = 0;  // parts whose copy has been asked for
  uint64_t taken_ = 0;     // of them, over
  std::array<std::unique_ptr<CudaMark>, kNodeSlots> emptied_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaLink>> OpenNodeLink(
    const CudaLinkContext& context, const NodeSlots& own, int index, int peer,
    const NodeSlots::Offer& offer) {
  auto link = std::make_unique<NodeLink>(context, own, index, peer);
  TFRING_RETURN_IF_ERROR(link->Open(offer));
  return link;
}

}  // namespace tfring
