#include "tfring_ops/transport/cuda/staged.h"

#include <array>
#include <deque>
#include <utility>

namespace tfring {
namespace {

// Pinned memory of one part, and the state of its content.
struct Slot {
  explicit Slot(const CudaLinkContext& context)
      : context(context), asked(context), copied(context) {}
  ~Slot() {
    if (memory != nullptr) context.driver.cuMemFreeHost.Result(memory);
  }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  absl::Status Allocate() {
    if (memory != nullptr) return absl::OkStatus();
    // With IPC the streams may wait for ranks of this node, and cuMemHostAlloc
    // may wait for the streams.
    TFRING_RETURN_IF_ERROR(WaitForStreams(context));
    return context.driver.cuMemHostAlloc(&memory, context.host_part_bytes,
                                         kCudaHostPortable);
  }
  std::byte* data() const { return static_cast<std::byte*>(memory); }

  const CudaLinkContext& context;
  void* memory = nullptr;
  CudaMark asked;   // the work enqueued before the copy
  CudaMark copied;  // between the GPU and here
  CudaMessage* message = nullptr;
  std::byte* device = nullptr;
  size_t bytes = 0;
  bool on_wire = false;
  OperationId request = kNoOperation;
};

// The slots of one direction, used in turn.
class Slots {
 public:
  explicit Slots(const CudaLinkContext& context)
      : part_bytes_(context.host_part_bytes) {
    for (std::unique_ptr<Slot>& slot : slots_) {
      slot = std::make_unique<Slot>(context);
      free_.push_back(slot.get());
    }
  }

  // Returns a free slot for the next part of the first message that has parts
  // left; null if there is no such slot or message.
  absl::StatusOr<Slot*> Begin(std::deque<CudaMessage*>& messages) {
    if (messages.empty() || free_.empty()) return nullptr;
    Slot* const slot = free_.front();
    TFRING_RETURN_IF_ERROR(slot->Allocate());
    free_.pop_front();
    busy_.push_back(slot);
    CudaMessage& message = *messages.front();
    slot->message = &message;
    slot->device = message.data + message.started;
    slot->bytes = message.NextPart(part_bytes_);
    slot->on_wire = false;
    message.started += slot->bytes;
    if (message.started == message.bytes) messages.pop_front();
    return slot;
  }

  std::deque<Slot*>& busy() { return busy_; }  // the earliest first
  void EndFirst() {
    free_.push_back(busy_.front());
    busy_.pop_front();
  }

  void FinishPart(CudaMessage& message) const {
    message.complete = ++message.finished == message.Parts(part_bytes_);
  }

 private:
  // One slot is copied from the GPU, one is on the wire, and each has a spare
  // one.
  std::array<std::unique_ptr<Slot>, 4> slots_;
  const size_t part_bytes_;
  std::deque<Slot*> free_, busy_;
};

class StagedLink final : public CudaLink {
 public:
  StagedLink(const CudaLinkContext& context, int peer)
      : context_(context), peer_(peer), out_(context), in_(context) {}

  void Send(CudaMessage& message) override { sends_.push_back(&message); }
  void Receive(CudaMessage& message) override { receives_.push_back(&message); }

  absl::Status Move() override {
    TFRING_RETURN_IF_ERROR(MoveReceives());
    return MoveSends();
  }

 private:
  absl::Status MoveSends() {
    for (;;) {
      TFRING_ASSIGN_OR_RETURN(Slot* const slot, out_.Begin(sends_));
      if (slot == nullptr) break;
      TFRING_RETURN_IF_ERROR(slot->asked.Record(context_.stream));
      TFRING_RETURN_IF_ERROR(slot->asked.Await(context_.outgoing));
      TFRING_RETURN_IF_ERROR(
          Copy(*slot, context_.outgoing, CopyDirection::kToHost));
      TFRING_RETURN_IF_ERROR(slot->copied.Record(context_.outgoing));
    }
    for (Slot* const slot : out_.busy()) {
      if (slot->on_wire) continue;
      TFRING_ASSIGN_OR_RETURN(const bool copied, slot->copied.Done());
      if (!copied) break;
      slot->on_wire = true;
      slot->request =
          context_.host.StartSend(peer_, ConstBytes(slot->data(), slot->bytes));
    }
    while (!out_.busy().empty() && out_.busy().front()->on_wire) {
      Slot& slot = *out_.busy().front();
      TFRING_ASSIGN_OR_RETURN(const bool sent,
                              context_.host.Test(slot.request));
      if (!sent) break;
      out_.FinishPart(*slot.message);
      out_.EndFirst();
    }
    return absl::OkStatus();
  }

  absl::Status MoveReceives() {
    // Release slots that have been copied to the GPU, in order.
    while (!in_.busy().empty() && !in_.busy().front()->on_wire) {
      TFRING_ASSIGN_OR_RETURN(const bool copied,
                              in_.busy().front()->copied.Done());
      if (!copied) break;
      in_.EndFirst();
    }
    for (;;) {
      TFRING_ASSIGN_OR_RETURN(Slot* const slot, in_.Begin(receives_));
      if (slot == nullptr) break;
      slot->on_wire = true;
      slot->request =
          context_.host.StartRecv(peer_, Bytes(slot->data(), slot->bytes));
    }
    for (Slot* const slot : in_.busy()) {
      if (!slot->on_wire) continue;
      TFRING_ASSIGN_OR_RETURN(const bool arrived,
                              context_.host.Test(slot->request));
      if (!arrived) break;
      slot->on_wire = false;
      // The copy waits until the stream has read the memory that it overwrites,
      // and the stream waits for the copy.
      TFRING_RETURN_IF_ERROR(slot->asked.Record(context_.stream));
      TFRING_RETURN_IF_ERROR(slot->asked.Await(context_.incoming));
      TFRING_RETURN_IF_ERROR(
          Copy(*slot, context_.incoming, CopyDirection::kToDevice));
      TFRING_RETURN_IF_ERROR(slot->copied.Record(context_.incoming));
      TFRING_RETURN_IF_ERROR(slot->copied.Await(context_.stream));
      in_.FinishPart(*slot->message);
    }
    return absl::OkStatus();
  }

  enum class CopyDirection { kToHost, kToDevice };
  absl::Status Copy(const Slot& slot, CUstream stream,
                    CopyDirection direction) const {
    if (slot.bytes == 0) return absl::OkStatus();
    const CUdeviceptr device = DeviceAddress(slot.device);
    return direction == CopyDirection::kToHost
               ? context_.driver.cuMemcpyDtoHAsync(slot.memory, device,
                                                   slot.bytes, stream)
               : context_.driver.cuMemcpyHtoDAsync(device, slot.memory,
                                                   slot.bytes, stream);
  }

  const CudaLinkContext& context_;
  const int peer_;
  std::deque<CudaMessage*> sends_, receives_;  // with parts left to start
  Slots out_, in_;
};

class CudaAwareLink final : public CudaLink {
 public:
  CudaAwareLink(const CudaLinkContext& context, int peer)
      : context_(context), peer_(peer) {}

  void Send(CudaMessage& message) override { Add(sends_, message); }
  void Receive(CudaMessage& message) override { Add(receives_, message); }

  absl::Status Move() override {
    TFRING_RETURN_IF_ERROR(Move(receives_, [this](const CudaMessage& message) {
      return context_.host.StartRecv(peer_, Bytes(message.data, message.bytes));
    }));
    return Move(sends_, [this](const CudaMessage& message) {
      return context_.host.StartSend(peer_,
                                     ConstBytes(message.data, message.bytes));
    });
  }

 private:
  struct Operation {
    CudaMessage* message;
    // Work enqueued before this transfer is complete: the send data is ready,
    // and the receive buffer is free.
    std::unique_ptr<CudaMark> ready;
    absl::Status recorded;
    bool started = false;
    OperationId request = kNoOperation;
  };

  void Add(std::deque<Operation>& operations, CudaMessage& message) {
    operations.push_back({&message, std::make_unique<CudaMark>(context_), {}});
    operations.back().recorded =
        operations.back().ready->Record(context_.stream);
  }

  template <typename Start>
  absl::Status Move(std::deque<Operation>& operations, const Start& start) {
    for (Operation& operation : operations) {
      if (operation.started) continue;
      TFRING_RETURN_IF_ERROR(operation.recorded);
      TFRING_ASSIGN_OR_RETURN(const bool ready, operation.ready->Done());
      if (!ready) break;
      operation.started = true;
      operation.request = start(*operation.message);
    }
    while (!operations.empty() && operations.front().started) {
      TFRING_ASSIGN_OR_RETURN(const bool complete,
                              context_.host.Test(operations.front().request));
      if (!complete) break;
      operations.front().message->complete = true;
      operations.pop_front();
    }
    return absl::OkStatus();
  }

  const CudaLinkContext& context_;
  const int peer_;
  std::deque<Operation> sends_, receives_;
};

}  // namespace

std::unique_ptr<CudaLink> MakeStagedLink(const CudaLinkContext& context,
                                         int peer) {
  return std::make_unique<StagedLink>(context, peer);
}

std::unique_ptr<CudaLink> MakeCudaAwareLink(const CudaLinkContext& context,
                                            int peer) {
  return std::make_unique<CudaAwareLink>(context, peer);
}

}  // namespace tfring
