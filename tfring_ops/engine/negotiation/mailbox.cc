#include "tfring_ops/engine/negotiation/mailbox.h"

#include <utility>

#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// This bit of a length says that the message is a heartbeat.
constexpr uint64_t kHeartbeat = uint64_t{1} << 63;

}  // namespace

Mailbox::Mailbox(Transport& transport)
    : transport_(transport),
      incoming_(transport.size()),
      heartbeat_is_on_its_way_(transport.size()) {}

Mailbox::Outgoing& Mailbox::Start(int peer,
                                  std::shared_ptr<const std::string> message,
                                  uint64_t flag) {
  Outgoing& out = outgoing_.emplace_back();
  out.number = ++sent_;
  out.message = std::move(message);
  out.length = out.message->size() | flag;
  out.length_sent = transport_.StartSend(peer, BytesOf(out.length));
  out.message_sent = transport_.StartSend(
      peer, ConstBytes(reinterpret_cast<const std::byte*>(out.message->data()),
                       out.message->size()));
  return out;
}

void Mailbox::Send(int peer, std::shared_ptr<const std::string> message) {
  Start(peer, std::move(message), /*flag=*/0);
}

void Mailbox::SendHeartbeat(int peer,
                            std::shared_ptr<const std::string> heartbeat) {
  if (heartbeat_is_on_its_way_[peer]) return;
  heartbeat_is_on_its_way_[peer] = true;
  Start(peer, std::move(heartbeat), kHeartbeat).heartbeat_to = peer;
}

absl::StatusOr<std::optional<std::string>> Mailbox::Poll(int peer) {
  TFRING_RETURN_IF_ERROR(Listen(peer));
  Incoming& in = incoming_[peer];
  if (in.phase != Incoming::Phase::kHere) return std::nullopt;
  in.phase = Incoming::Phase::kIdle;
  return std::exchange(in.message, {});
}

absl::Status Mailbox::Listen(int peer) {
  using Phase = Incoming::Phase;
  Incoming& in = incoming_[peer];
  while (in.phase != Phase::kHere) {
    if (in.phase == Phase::kIdle) {
      in.request = transport_.StartRecv(peer, BytesOf(in.length));
      in.phase = Phase::kLength;
    }
    if (in.phase == Phase::kLength) {
      TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(in.request));
      if (!complete) return absl::OkStatus();
      in.message.resize(in.length & ~kHeartbeat);
      in.request = transport_.StartRecv(
          peer, Bytes(reinterpret_cast<std::byte*>(in.message.data()),
                      in.message.size()));
      in.phase = Phase::kMessage;
    }
    TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(in.request));
    if (!complete) return absl::OkStatus();
    ++in.heard.count;
    if ((in.length & kHeartbeat) != 0) {
      in.heard.heartbeat = std::exchange(in.message, {});
      ++in.heard.heartbeats;
      in.phase = Phase::kIdle;
    } else {
      in.phase = Phase::kHere;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Mailbox::HaveLeft(int64_t count) {
  TFRING_RETURN_IF_ERROR(Collect());
  return outgoing_.empty() || outgoing_.front().number > count;
}

void Mailbox::KeepMemory() {
  KeepForever(std::move(outgoing_));
  KeepForever(std::move(incoming_));
}

absl::Status Mailbox::Flush() {
  for (Outgoing& out : outgoing_) {
    TFRING_RETURN_IF_ERROR(transport_.Wait(out.length_sent));
    TFRING_RETURN_IF_ERROR(transport_.Wait(out.message_sent));
  }
  outgoing_.clear();
  heartbeat_is_on_its_way_.assign(incoming_.size(), false);
  return absl::OkStatus();
}

absl::Status Mailbox::Collect() {
  for (auto out = outgoing_.begin(); out != outgoing_.end();) {
    bool has_left = true;
    for (OperationId* request : {&out->length_sent, &out->message_sent}) {
      TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(*request));
      if (complete) *request = kNoOperation;
      has_left = has_left && complete;
    }
    if (!has_left) {
      ++out;
      continue;
    }
    if (out->heartbeat_to >= 0) {
      heartbeat_is_on_its_way_[out->heartbeat_to] = false;
    }
    out = outgoing_.erase(out);
  }
  return absl::OkStatus();
}

}  // namespace tfring
