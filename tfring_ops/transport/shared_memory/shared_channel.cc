#include "tfring_ops/transport/shared_memory/shared_channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/streaming_copy.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

// A message is its length, alone in a line, and then its bytes, filled up to
// whole lines: so all positions but those within a message's last line are
// multiples of a line, and a part holds whole elements.
constexpr size_t kLine = kPartAlignment;

// Progress is published in steps of this size: the reader can begin before the
// whole message is here, and its data is still in cache.
constexpr size_t kPartBytes = 64 << 10;

// The same for a message that is read where it is: each part is a call of the
// system, and stays in cache until it is reduced.
constexpr size_t kDirectPartBytes = 256 << 10;

// Shorter copies use memcpy: they wait for few lines.
constexpr size_t kLeastStreamedBytes = 16 << 10;

constexpr uint64_t RoundUp(uint64_t position) {
  return (position + kLine - 1) / kLine * kLine;
}

}  // namespace

bool ChannelWriter::Write(ConstBytes message) {
  if (!in_message_) {
    if (Room() == 0) return false;
    const bool is_direct =
        reader_ == Reader::kReadsMemory && message.size() >= kDirectBytes;
    const MessageHeader header{
        message.size(),
        is_direct ? reinterpret_cast<uint64_t>(message.data()) : 0};
    std::memcpy(channel_->ring() + written_ % ring_bytes_, &header,
                sizeof(header));
    written_ += kLine;
    if (message.empty() || is_direct) {
      channel_->written.store(written_, std::memory_order_release);
    }
    if (is_direct) {
      in_use_ = written_;
      return true;
    }
    in_message_ = true;
    sent_bytes_ = 0;
  }
  while (sent_bytes_ < message.size()) {
    const size_t part_bytes =
        std::min({message.size() - sent_bytes_, Room(), kPartBytes});
    if (part_bytes == 0) return false;
    WritePart(message.subspan(sent_bytes_, part_bytes));
    sent_bytes_ += part_bytes;
    written_ = RoundUp(written_ + part_bytes);
    channel_->written.store(written_, std::memory_order_release);
  }
  in_message_ = false;
  return true;
}

// See Note [Plain or streaming stores].
void ChannelWriter::WritePart(ConstBytes part) {
  std::byte* const place = channel_->ring() + written_ % ring_bytes_;
  if (part.size() < kLeastStreamedBytes) {
    std::memcpy(place, part.data(), part.size());
    return;
  }
  const auto begin = Clock::now();
  if (stores_.streams()) {
    StreamingCopy(place, part.data(), part.size());
  } else {
    std::memcpy(place, part.data(), part.size());
  }
  const std::chrono::duration<double> taken = Clock::now() - begin;
  stores_.Written(taken.count() / static_cast<double>(part.size()));
}

bool ChannelWriter::HasPassed(uint64_t position) {
  if (channel_->read.load(std::memory_order_acquire) >= position) return true;
  if (channel_->refused.load(std::memory_order_acquire) != 0) AnswerRefusal();
  return false;
}

// The reader waits for this one message, so one copy is enough.
void ChannelWriter::AnswerRefusal() {
  reader_ = Reader::kReadsRing;
  const uint64_t position =
      channel_->refused.load(std::memory_order_relaxed) - 1;
  std::byte* const place = channel_->ring() + position % ring_bytes_;
  MessageHeader header;
  std::memcpy(&header, place, sizeof(header));
  const auto* const message =
      // NOLINTNEXTLINE(performance-no-int-to-ptr): of this process
      reinterpret_cast<const std::byte*>(header.address);
  refused_.assign(message, message + header.bytes);
  header.address = reinterpret_cast<uint64_t>(refused_.data());
  std::memcpy(place, &header, sizeof(header));
  channel_->refused.store(0, std::memory_order_release);
}

// Bytes that can be written in one piece.
size_t ChannelWriter::Room() const {
  const uint64_t read = channel_->read.load(std::memory_order_acquire);
  return std::min<size_t>(ring_bytes_ - (written_ - read),
                          ring_bytes_ - written_ % ring_bytes_);
}

void ChannelWriter::Close(const absl::Status& reason) {
  // The memory was zero, so the text is terminated.
  reason.message().copy(channel_->reason, SharedChannel::kReasonBytes - 1);
  // A store alone might come after later ones to the messages' memory.
  channel_->closed.exchange(1, std::memory_order_acq_rel);
}

ChannelReader::ChannelReader(SharedChannel* channel, size_t ring_bytes,
                             ReadMemory read_memory)
    : channel_(channel),
      ring_bytes_(ring_bytes),
      read_memory_(std::move(read_memory)) {}

absl::StatusOr<bool> ChannelReader::Read(Bytes message) {
  TFRING_ASSIGN_OR_RETURN(const bool begun, Begin(message.size()));
  if (!begun) return false;
  if (message_.address != 0) {
    TFRING_ASSIGN_OR_RETURN(
        const bool is_read,
        ReadDirectly(message.subspan(message.size() - missing_bytes_)));
    if (!is_read) return false;
    missing_bytes_ = 0;
  }
  while (missing_bytes_ > 0) {
    TFRING_ASSIGN_OR_RETURN(const ConstBytes part, Peek(message.size()));
    if (part.empty()) return false;
    std::memcpy(message.data() + (message.size() - missing_bytes_), part.data(),
                part.size());
    Release();
  }
  in_message_ = false;
  Publish();
  return true;
}

absl::StatusOr<ConstBytes> ChannelReader::Peek(size_t message_bytes) {
  TFRING_ASSIGN_OR_RETURN(const bool begun, Begin(message_bytes));
  if (!begun) return ConstBytes();
  if (message_.address != 0) {
    part_.resize(kDirectPartBytes);
    const Bytes part(part_.data(), std::min(missing_bytes_, part_.size()));
    TFRING_ASSIGN_OR_RETURN(const bool is_read, ReadDirectly(part));
    if (!is_read) return ConstBytes();
    part_bytes_ = part.size();
    return part;
  }
  part_bytes_ = std::min({missing_bytes_, Available(), kPartBytes});
  return ConstBytes(channel_->ring() + read_ % ring_bytes_, part_bytes_);
}

void ChannelReader::Release() {
  missing_bytes_ -= part_bytes_;
  if (message_.address == 0) read_ = RoundUp(read_ + part_bytes_);
  part_bytes_ = 0;
  if (missing_bytes_ == 0) in_message_ = false;
  // The end of a message that is read where it is frees it for its writer.
  if (message_.address == 0 || !in_message_) Publish();
}

absl::Status ChannelReader::closed() const {
  if (!channel_->closed.load(std::memory_order_acquire)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(channel_->reason);
}

absl::StatusOr<bool> ChannelReader::Begin(size_t message_bytes) {
  if (!in_message_) {
    if (Available() == 0) return false;
    header_ = read_;
    message_ = HeaderAt(header_);
    read_ += kLine;
    in_message_ = true;
    has_refused_ = false;
    missing_bytes_ = message_.bytes;
  }
  if (message_.bytes != message_bytes) {
    return absl::InternalError(absl::StrCat("a message of ", message_.bytes,
                                            " bytes met a receive of ",
                                            message_bytes));
  }
  return true;
}

// A writer that gives up closes the channel before its memory has another use:
// bytes that were read before that are the message's.
absl::StatusOr<bool> ChannelReader::ReadDirectly(Bytes target) {
  if (channel_->refused.load(std::memory_order_acquire) != 0) return false;
  message_ = HeaderAt(header_);  // It may have moved.
  const size_t first = message_.bytes - missing_bytes_;
  const bool is_read = read_memory_(message_.address + first, target);
  // A load alone might come before the reads.
  if (channel_->closed.fetch_add(0, std::memory_order_acq_rel) != 0) {
    return closed();
  }
  if (!is_read) {
    if (has_refused_) {
      return absl::UnavailableError(
          "the memory of a rank of this node can no longer be read");
    }
    has_refused_ = true;
    channel_->refused.store(header_ + 1, std::memory_order_release);
  }
  return is_read;
}

MessageHeader ChannelReader::HeaderAt(uint64_t position) const {
  MessageHeader header;
  std::memcpy(&header, channel_->ring() + position % ring_bytes_,
              sizeof(header));
  return header;
}

// Bytes that can be read in one piece.
size_t ChannelReader::Available() const {
  const uint64_t written = channel_->written.load(std::memory_order_acquire);
  return std::min<size_t>(written - read_, ring_bytes_ - read_ % ring_bytes_);
}

void ChannelReader::Publish() {
  channel_->read.store(read_, std::memory_order_release);
}

}  // namespace tfring
