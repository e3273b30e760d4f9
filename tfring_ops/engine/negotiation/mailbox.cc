#include "tfring_ops/engine/negotiation/mailbox.h"

#include <utility>

#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

ConstBytes BytesOf(const uint64_t& number) {
  return ConstBytes(reinterpret_cast<const std::byte*>(&number),
                    sizeof(number));
}

ConstBytes BytesOf(const std::string& text) {
  return ConstBytes(reinterpret_cast<const std::byte*>(text.data()),
                    text.size());
}

}  // namespace

Mailbox::Mailbox(Transport& transport)
    : transport_(transport), incoming_(transport.size()) {}

void Mailbox::Send(int peer, std::shared_ptr<const std::string> message) {
  ++sent_;
  Outgoing& out = outgoing_.emplace_back();
  out.message = std::move(message);
  out.length = out.message->size();
  out.length_sent = transport_.StartSend(peer, BytesOf(out.length));
  out.message_sent = transport_.StartSend(peer, BytesOf(*out.message));
}

absl::StatusOr<std::optional<std::string>> Mailbox::Poll(int peer) {
  TFRING_RETURN_IF_ERROR(Collect());
  Incoming& in = incoming_[peer];
  if (in.phase == Incoming::Phase::kIdle) {
    in.request = transport_.StartRecv(
        peer,
        Bytes(reinterpret_cast<std::byte*>(&in.length), sizeof(in.length)));
    in.phase = Incoming::Phase::kLength;
  }
  if (in.phase == Incoming::Phase::kLength) {
    TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(in.request));
    if (!complete) return std::nullopt;
    in.message.resize(in.length);
    in.request = transport_.StartRecv(
        peer, Bytes(reinterpret_cast<std::byte*>(in.message.data()),
                    in.message.size()));
    in.phase = Incoming::Phase::kMessage;
  }
  TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(in.request));
  if (!complete) return std::nullopt;
  in.phase = Incoming::Phase::kIdle;
  return std::exchange(in.message, {});
}

absl::Status Mailbox::Flush(int64_t count) {
  while (sent_ - static_cast<int64_t>(outgoing_.size()) < count) {
    const Outgoing& out = outgoing_.front();
    TFRING_RETURN_IF_ERROR(transport_.Wait(out.length_sent));
    TFRING_RETURN_IF_ERROR(transport_.Wait(out.message_sent));
    outgoing_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status Mailbox::Collect() {
  for (Outgoing& out : outgoing_) {
    for (OperationId* request : {&out.length_sent, &out.message_sent}) {
      TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(*request));
      if (complete) *request = kNoOperation;
    }
  }
  while (!outgoing_.empty() && outgoing_.front().length_sent == kNoOperation &&
         outgoing_.front().message_sent == kNoOperation) {
    outgoing_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace tfring
