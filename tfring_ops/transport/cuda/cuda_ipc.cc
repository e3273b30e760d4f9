#include "tfring_ops/transport/cuda/cuda_ipc.h"

#include <array>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tfring {
namespace {

// The offset of a part that is in a slot instead of the exported memory.
constexpr uint64_t kInSlot = UINT64_MAX;

struct Token {
  enum class Kind : uint64_t { kFilled, kEmptied };
  Kind kind;
  // For kFilled only: the message that the part belongs to, and its place.
  uint64_t message_bytes = 0;
  uint64_t offset = 0;  // in the exported memory, or kInSlot
};

class IpcLink final : public CudaLink {
 public:
  IpcLink(const CudaLinkContext& context, const IpcMemory& memory, int index,
          int peer)
      : context_(context),
        memory_(memory),
        index_(index),
        peer_(peer),
        own_flags_(memory.flags(index)) {}

  absl::Status Open(const IpcOffer& offer) {
    const CudaDriver& driver = context_.driver;
    TFRING_RETURN_IF_ERROR(driver.cuIpcOpenMemHandle(&mapped_, offer.memory,
                                                     kCudaIpcLazyPeerAccess));
    incoming_ = static_cast<std::byte*>(DeviceMemory(mapped_)) + offer.offset;
    TFRING_ASSIGN_OR_RETURN(mapped_flags_, IpcFlags::Open(driver, offer.flags));
    peer_flags_ = mapped_flags_->of_peer(offer.flags.index);
    return absl::OkStatus();
  }

  absl::Status OpenExported(const CUipcMemHandle& memory) override {
    return context_.driver.cuIpcOpenMemHandle(&exported_, memory,
                                              kCudaIpcLazyPeerAccess);
  }
  void CloseExported() override {
    if (exported_ != 0) context_.driver.cuIpcCloseMemHandle.Result(exported_);
    exported_ = 0;
  }

  ~IpcLink() override { Close(); }

  void Send(CudaMessage& message) override { sends_.push_back(&message); }
  void Receive(CudaMessage& message) override {
    receives_.push_back(&message);
    wanted_parts_ += message.Parts(context_.part_bytes);
  }

  absl::Status Move() override {
    TFRING_RETURN_IF_ERROR(MoveTokens());
    TFRING_RETURN_IF_ERROR(MoveReceives());
    return MoveSends();
  }

  bool CanPeek() const override { return true; }

  absl::StatusOr<ConstBytes> Peek(size_t message_bytes) override {
    if (peeked_.bytes == peeked_.started) {
      peeked_ = CudaMessage();
      peeked_.bytes = message_bytes;
    }
    if (!peeking_) ++wanted_parts_;
    peeking_ = true;
    TFRING_RETURN_IF_ERROR(Move());
    if (arrived_.empty()) return ConstBytes();
    TFRING_RETURN_IF_ERROR(BeginRead(peeked_.bytes));
    const size_t bytes = peeked_.NextPart(context_.part_bytes);
    peeked_.started += bytes;
    peeking_ = false;
    return ConstBytes(incoming_part_, bytes);
  }
  absl::Status Release() override {
    EndRead();
    return absl::OkStatus();
  }

  absl::Status AwaitSent(const CudaMessage& message) override {
    if (!message.is_read_in_place) return AwaitCopies(message.last_part);
    // If this part has been read, all earlier parts have, too.
    if (message.last_part > awaited_reads_) {
      own_flags_.emptied.Await(*context_.numbers, message.last_part);
      awaited_reads_ = message.last_part;
    }
    return absl::OkStatus();
  }

  void SendTokens() override {
    for (; !unsent_.empty(); unsent_.pop_front()) {
      tokens_.push_back({unsent_.front()});
      SentToken& sent = tokens_.back();
      sent.request = context_.host.StartSend(peer_, BytesOf(sent.token));
    }
  }

  absl::Status LetTokensGo() override {
    for (; !tokens_.empty(); tokens_.pop_front()) {
      TFRING_RETURN_IF_ERROR(context_.host.Wait(tokens_.front().request));
    }
    return absl::OkStatus();
  }

  void StopWaiting() override {
    for (const IpcFlag& filled : own_flags_.filled) {
      filled.Release(static_cast<uint32_t>(read_));
    }
    own_flags_.emptied.Release(static_cast<uint32_t>(written_));
    own_flags_.ready.Release(static_cast<uint32_t>(readied_));
  }

  absl::Status Quiesce() override {
    TFRING_RETURN_IF_ERROR(LetTokensGo());
    // The peer has enqueued its last read, which may be incomplete.
    own_flags_.emptied.Await(*context_.outgoing_numbers, written_);
    TFRING_RETURN_IF_ERROR(FlushNumbers(context_));
    TFRING_RETURN_IF_ERROR(WaitForStream(context_, context_.outgoing));
    TFRING_RETURN_IF_ERROR(WaitForStream(context_, context_.stream));
    Close();
    return absl::OkStatus();
  }

 private:
  struct SentToken {
    Token token;
    OperationId request = kNoOperation;
  };

  struct Part {
    CudaMessage* message;
    bool is_read_in_place;
  };

  void Close() {
    CloseExported();
    mapped_flags_.reset();
    if (mapped_ != 0) context_.driver.cuIpcCloseMemHandle.Result(mapped_);
    mapped_ = 0;
  }

  // A receive is posted only for a token that is certain to arrive, so no
  // receive is left over at the end.
  bool ExpectsToken() const {
    return in_flight_ > 0 || arrived_.size() < wanted_parts_;
  }

  absl::Status MoveTokens() {
    while (!tokens_.empty()) {
      TFRING_ASSIGN_OR_RETURN(const bool sent,
                              context_.host.Test(tokens_.front().request));
      if (!sent) break;
      tokens_.pop_front();
    }
    while (token_request_ != kNoOperation || ExpectsToken()) {
      if (token_request_ == kNoOperation) {
        token_request_ = context_.host.StartRecv(peer_, BytesOf(token_));
      }
      TFRING_ASSIGN_OR_RETURN(const bool arrived,
                              context_.host.Test(token_request_));
      if (!arrived) break;
      token_request_ = kNoOperation;
      if (token_.kind == Token::Kind::kFilled) {
        arrived_.push_back(token_);
      } else {
        EndSend();
      }
    }
    return absl::OkStatus();
  }

  // SendTokens sends it, once the numbers that it tells of are enqueued.
  void SendToken(const Token& token) { unsent_.push_back(token); }

  absl::Status MoveSends() {
    while (!sends_.empty() && in_flight_ < kIpcSlots) {
      CudaMessage& message = *sends_.front();
      const int slot = static_cast<int>(written_ % kIpcSlots);
      const std::byte* const data = message.data + message.started;
      const size_t bytes = message.NextPart(context_.part_bytes);
      const uint64_t offset = OffsetOf(data);
      if (offset == kInSlot) {
        TFRING_RETURN_IF_ERROR(FillSlot(message, slot, data, bytes));
        peer_flags_.filled[slot].Set(*context_.outgoing_numbers, written_ + 1);
        copies_[slot] = written_ + 1;
      } else {
        TFRING_RETURN_IF_ERROR(AwaitCopies(copies_[slot]));
        peer_flags_.filled[slot].Set(*context_.numbers, written_ + 1);
      }
      message.started += bytes;
      SendToken({Token::Kind::kFilled, message.bytes, offset});
      parts_in_flight_.push_back({&message, offset != kInSlot});
      ++in_flight_;
      ++written_;
      if (message.started == message.bytes) sends_.pop_front();
    }
    return absl::OkStatus();
  }

  // Returns the offset of `data` in this rank's exported memory.
  uint64_t OffsetOf(const std::byte* data) const {
    const Bytes& exported = memory_.exported();
    const uint64_t offset =
        DeviceAddress(data) - DeviceAddress(exported.data());
    return offset < exported.size() ? offset : kInSlot;
  }

  absl::Status FillSlot(const CudaMessage& message, int slot,
                        const std::byte* data, size_t bytes) {
    if (message.started == 0) {
      own_flags_.ready.Set(*context_.numbers, ++readied_);
      // The number must be enqueued before the wait for it; see FlushNumbers.
      TFRING_RETURN_IF_ERROR(context_.numbers->Flush());
      own_flags_.ready.Await(*context_.outgoing_numbers, readied_);
    }
    if (written_ >= kIpcSlots) {  // The slot has been used before.
      own_flags_.emptied.Await(*context_.outgoing_numbers,
                               written_ + 1 - kIpcSlots);
    }
    if (bytes == 0) return absl::OkStatus();
    TFRING_RETURN_IF_ERROR(context_.outgoing_numbers->Flush());
    return context_.driver.cuMemcpyDtoDAsync(
        DeviceAddress(memory_.slots(index_) + slot * context_.part_bytes),
        DeviceAddress(data), bytes, context_.outgoing);
  }

  // Makes the stream wait until `part`, which is in a slot, has been copied
  // there and its flag is set.  All earlier parts are complete then, too,
  // because copies are in order.
  absl::Status AwaitCopies(uint64_t part) {
    if (part <= awaited_copies_) return absl::OkStatus();
    TFRING_RETURN_IF_ERROR(context_.outgoing_numbers->Flush());
    peer_flags_.filled[(part - 1) % kIpcSlots].Await(*context_.numbers, part);
    awaited_copies_ = part;
    return absl::OkStatus();
  }

  // Called when the peer has enqueued its read of the earliest part.
  void EndSend() {
    const Part part = parts_in_flight_.front();
    CudaMessage& message = *part.message;
    parts_in_flight_.pop_front();
    --in_flight_;
    message.complete = ++message.finished == message.Parts(context_.part_bytes);
    message.last_part = written_ - in_flight_;
    message.is_read_in_place = part.is_read_in_place;
  }

  absl::Status MoveReceives() {
    while (!receives_.empty() && !arrived_.empty()) {
      CudaMessage& message = *receives_.front();
      TFRING_RETURN_IF_ERROR(BeginRead(message.bytes));
      const size_t bytes = message.NextPart(context_.part_bytes);
      if (bytes > 0) {
        TFRING_RETURN_IF_ERROR(FlushNumbers(context_));
        TFRING_RETURN_IF_ERROR(context_.driver.cuMemcpyDtoDAsync(
            DeviceAddress(message.data + message.started),
            DeviceAddress(incoming_part_), bytes, context_.stream));
      }
      EndRead();
      message.started += bytes;
      if (message.started == message.bytes) {
        message.complete = true;
        receives_.pop_front();
      }
    }
    return absl::OkStatus();
  }

  // Lets the stream read incoming_part_, a part of a message of that size.
  absl::Status BeginRead(uint64_t message_bytes) {
    const Token token = arrived_.front();
    if (token.message_bytes != message_bytes) {
      return absl::InternalError(
          absl::StrCat("rank ", peer_, " sent ", token.message_bytes,
                       " bytes where ", message_bytes, " were expected"));
    }
    arrived_.pop_front();
    --wanted_parts_;
    const uint64_t slot = read_ % kIpcSlots;
    incoming_part_ =
        token.offset == kInSlot
            ? incoming_ + slot * context_.part_bytes
            : static_cast<std::byte*>(DeviceMemory(exported_)) + token.offset;
    own_flags_.filled[slot].Await(*context_.numbers, read_ + 1);
    return absl::OkStatus();
  }

  void EndRead() {
    peer_flags_.emptied.Set(*context_.numbers, ++read_);
    SendToken({Token::Kind::kEmptied});
  }

  const CudaLinkContext& context_;
  const IpcMemory& memory_;
  const int index_, peer_;

  const IpcPeerFlags own_flags_;  // the flags that this rank awaits

  // The peer's slots for this rank, its flags, and its exported memory.
  CUdeviceptr mapped_ = 0;
  std::byte* incoming_ = nullptr;
  std::unique_ptr<IpcFlags> mapped_flags_;
  IpcPeerFlags peer_flags_;
  CUdeviceptr exported_ = 0;

  std::deque<CudaMessage*> sends_;  // with parts left to start
  std::deque<Part> parts_in_flight_;
  uint64_t written_ = 0;    // parts
  uint64_t in_flight_ = 0;  // of them
  uint64_t readied_ = 0;    // messages
  // The latest part, counted from 1, that was copied to each slot.
  std::array<uint64_t, kIpcSlots> copies_{};
  // The stream waits for these parts, and all before them.
  uint64_t awaited_copies_ = 0, awaited_reads_ = 0;

  std::deque<CudaMessage*> receives_;  // with parts left to come
  CudaMessage peeked_;
  bool peeking_ = false;
  uint64_t wanted_parts_ = 0;           // that have not been read
  std::deque<Token> arrived_;           // of them
  std::byte* incoming_part_ = nullptr;  // that is read
  uint64_t read_ = 0;                   // parts

  Token token_{};  // that comes next
  OperationId token_request_ = kNoOperation;
  std::deque<Token> unsent_;
  std::deque<SentToken> tokens_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IpcMemory>> IpcMemory::Create(
    const CudaLinkContext& context, int peers) {
  std::unique_ptr<IpcMemory> memory(new IpcMemory(context));
  TFRING_RETURN_IF_ERROR(memory->Open(peers));
  return memory;
}

absl::Status IpcMemory::Open(int peers) {
  const CudaDriver& driver = context_.driver;
  const size_t bytes_per_peer = kIpcSlots * context_.part_bytes;
  TFRING_RETURN_IF_ERROR(driver.cuMemAlloc(
      &memory_, std::max<size_t>(kExportedBytes, peers * bytes_per_peer)));
  if (peers > 0) {
    TFRING_ASSIGN_OR_RETURN(flags_, IpcFlags::Create(driver, peers));
  }
  offers_.resize(peers);
  for (int index = 0; index < peers; ++index) {
    IpcOffer& offer = offers_[index];
    TFRING_RETURN_IF_ERROR(driver.cuIpcGetMemHandle(&offer.memory, memory_));
    offer.offset = index * bytes_per_peer;
    offer.flags = flags_->offer(index);
  }
  return absl::OkStatus();
}

absl::StatusOr<CUipcMemHandle> IpcMemory::Export(Bytes memory) {
  CUipcMemHandle handle{};
  TFRING_RETURN_IF_ERROR(
      context_.driver.cuIpcGetMemHandle(&handle, DeviceAddress(memory.data())));
  exported_ = memory;
  return handle;
}

IpcMemory::~IpcMemory() {
  if (memory_ != 0) context_.driver.cuMemFree.Result(memory_);
}

absl::StatusOr<std::unique_ptr<CudaLink>> OpenIpcLink(
    const CudaLinkContext& context, const IpcMemory& memory, int index,
    int peer, const IpcOffer& offer) {
  auto link = std::make_unique<IpcLink>(context, memory, index, peer);
  TFRING_RETURN_IF_ERROR(link->Open(offer));
  return link;
}

}  // namespace tfring
