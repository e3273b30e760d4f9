#include "tfring_ops/transport/shared_memory/shared_channel.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/streaming_copy.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

// A message is a header, alone in a line, and then its bytes, padded to whole
// lines.  So all positions except those within a message's last line are
// multiples of a line, and a part holds whole elements.
constexpr size_t kLine = kPartAlignment;

struct Header {
  uint64_t message_bytes;
  uint64_t used_bytes;  // of the ring, from the end of the header on
};
static_assert(sizeof(Header) <= kLine);

// Progress is published in steps of this size: the reader can begin before the
// whole message is here, and its data is still in cache.
constexpr size_t kPartBytes = 64 << 10;

// Shorter messages keep the way of the last one, because they wait for few
// lines.
constexpr size_t kLeastChosenBytes = 16 << 10;

constexpr uint64_t RoundUp(uint64_t position) {
  return (position + kLine - 1) / kLine * kLine;
}

double Now() {
  const std::chrono::duration<double> now = Clock::now().time_since_epoch();
  return now.count();
}

// See Note [Two ways through a ring].
size_t UsedBytes(size_t ring_bytes, RingWay way) {
  if (way == RingWay::kNear) return ring_bytes;
  return std::max(2 * kLine, ring_bytes / 3 / kLine * kLine);
}

}  // namespace

bool ChannelWriter::Write(ConstBytes message, uint64_t read) {
  if (!in_message_) {
    if (Room() == 0) return false;
    Begin(message.size(), read);
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
  if (is_chosen_) choice_.End(Now());
  return true;
}

// REQUIRES: there is room.
void ChannelWriter::Begin(size_t message_bytes, uint64_t read) {
  is_chosen_ = message_bytes >= kLeastChosenBytes;
  if (is_chosen_) way_ = choice_.Begin(written_, read, Now());
  const Header header{message_bytes, UsedBytes(ring_bytes_, way_)};
  std::memcpy(channel_->ring() + places_.place(written_), &header,
              sizeof(header));
  written_ += kLine;
  in_message_ = true;
  sent_bytes_ = 0;
  const bool changes = header.used_bytes != places_.used_bytes();
  if (changes) places_.Begin(written_, header.used_bytes);
  // Otherwise the first part publishes the header, too.
  if (changes || message_bytes == 0) {
    channel_->written.store(written_, std::memory_order_release);
  }
}

void ChannelWriter::WritePart(ConstBytes part) {
  std::byte* const place = channel_->ring() + places_.place(written_);
  if (way_ == RingWay::kFar && part.size() >= kLeastChosenBytes) {
    StreamingCopy(place, part.data(), part.size());
  } else {
    std::memcpy(place, part.data(), part.size());
  }
}

// Returns the number of bytes that can be written in one piece.
size_t ChannelWriter::Room() const {
  const uint64_t read = channel_->read.load(std::memory_order_acquire);
  // The reader does not know yet how much of the ring is used.
  if (read < places_.begin()) return 0;
  return std::min<size_t>(places_.used_bytes() - (written_ - read),
                          places_.rest(written_));
}

void ChannelWriter::Close(const absl::Status& reason) {
  // The memory was filled with zeros, so the text is terminated.
  reason.message().copy(channel_->reason, SharedChannel::kReasonBytes - 1);
  channel_->closed.store(1, std::memory_order_release);
}

absl::StatusOr<bool> ChannelReader::Read(Bytes message) {
  TFRING_ASSIGN_OR_RETURN(const bool begun, Begin(message.size()));
  if (!begun) return false;
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
  part_bytes_ = std::min({missing_bytes_, Available(), kPartBytes});
  return ConstBytes(channel_->ring() + places_.place(read_), part_bytes_);
}

void ChannelReader::Release() {
  missing_bytes_ -= part_bytes_;
  read_ = RoundUp(read_ + part_bytes_);
  part_bytes_ = 0;
  if (missing_bytes_ == 0) in_message_ = false;
  Publish();
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
    Header header;
    std::memcpy(&header, channel_->ring() + places_.place(read_),
                sizeof(header));
    read_ += kLine;
    in_message_ = true;
    message_bytes_ = missing_bytes_ = header.message_bytes;
    if (header.used_bytes != places_.used_bytes()) {
      places_.Begin(read_, header.used_bytes);
      Publish();  // The writer waits for it.
    }
  }
  if (message_bytes_ != message_bytes) {
    return absl::InternalError(absl::StrCat("a message of ", message_bytes_,
                                            " bytes met a receive of ",
                                            message_bytes));
  }
  return true;
}

// Returns the number of bytes that can be read in one piece.
size_t ChannelReader::Available() const {
  const uint64_t written = channel_->written.load(std::memory_order_acquire);
  return std::min<size_t>(written - read_, places_.rest(read_));
}

void ChannelReader::Publish() {
  channel_->read.store(read_, std::memory_order_release);
}

}  // namespace tfring
