#include "tfring_ops/engine/negotiation/mailbox.h"

#include <algorithm>
#include <cstddef>
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
  const std::string& text = *out.message;
  out.head = {text.size() | flag, {}};
  text.copy(out.head.text, Head::kRoom);
  out.head_sent = transport_.StartSend(peer, BytesOf(out.head));
  out.rest_sent = kNoOperation;
  if (text.size() > Head::kRoom) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
    out.rest_sent = transport_.StartSend(
        peer, ConstBytes(bytes, text.size()).subspan(Head::kRoom));
  }
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
      in.request = transport_.StartRecv(peer, BytesOf(in.head));
      in.phase = Phase::kHead;
    }
    TFRING_ASSIGN_OR_RETURN(const bool complete, transport_.Test(in.request));
    if (!complete) return absl::OkStatus();
    if (in.phase == Phase::kHead) {
      const uint64_t length = in.head.length & ~kHeartbeat;
      in.message.resize(length);
      in.message.replace(0, Head::kRoom, in.head.text,
                         std::min<uint64_t>(length, Head::kRoom));
      if (length > Head::kRoom) {
        auto* const bytes = reinterpret_cast<std::byte*>(in.message.data());
        in.request = transport_.StartRecv(
            peer, Bytes(bytes, length).subspan(Head::kRoom));
        in.phase = Phase::kRest;
        continue;
      }
    }
    ++in.heard.count;
    if ((in.head.length & kHeartbeat) != 0) {
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
    TFRING_RETURN_IF_ERROR(transport_.Wait(out.head_sent));
    TFRING_RETURN_IF_ERROR(transport_.Wait(out.rest_sent));
  }
  outgoing_.clear();
  heartbeat_is_on_its_way_.assign(incoming_.size(), false);
  return absl::OkStatus();
}

absl::Status Mailbox::Collect() {
  for (auto out = outgoing_.begin(); out != outgoing_.end();) {
    bool has_left = true;
    for (OperationId* request : {&out->head_sent, &out->rest_sent}) {
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
