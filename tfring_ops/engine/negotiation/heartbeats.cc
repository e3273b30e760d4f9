#include "tfring_ops/engine/negotiation/heartbeats.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/negotiation/messages.h"

namespace tfring {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kCoordinatorRank = 0;
// A rank that has no core for up to this long does not count as silent.
constexpr double kLeastSilence = 0.5;
// Heartbeats are sent this many times within the silence that counts, and once
// a second at least.
constexpr double kHeartbeatsPerSilence = 8;

Heartbeats::Clock::duration ToDuration(double seconds) {
  return std::chrono::duration_cast<Heartbeats::Clock::duration>(
      Seconds(seconds));
}

}  // namespace

Heartbeats::Heartbeats(const Options& options, int rank, int size,
                       Mailbox& mailbox, Clock::time_point now)
    : rank_(rank),
      size_(size),
      mailbox_(mailbox),
      peers_(size),
      last_look_(now),
      next_look_(now),
      next_send_(now) {
  for (int peer = 0; peer < size; ++peer) {
    peers_[peer].listens =
        peer != rank && (rank == kCoordinatorRank || peer == kCoordinatorRank);
  }
  Spare(now);
  double limit = options.stall_check_seconds;
  const double end = options.stall_shutdown_seconds;
  if (limit == 0 || (end > 0 && end < limit)) limit = end;
  if (size == 1 || limit == 0) return;
  // Find silent ranks early enough for the report.
  const double silence = std::max(0.8 * limit, kLeastSilence);
  silence_ = ToDuration(silence);
  period_ = ToDuration(std::min(silence / kHeartbeatsPerSilence, 1.0));
}

void Heartbeats::Spare(Clock::time_point now) {
  for (Peer& peer : peers_) peer.last = now;
}

absl::Status Heartbeats::Look(Clock::time_point now) {
  if (period_.count() == 0 || now < next_look_) return absl::OkStatus();
  // This rank has slept, and its peers may have, too; their messages may not
  // have arrived yet.
  if (now - last_look_ > silence_ / 2) Spare(now);
  last_look_ = now;
  next_look_ = now + look();
  TFRING_RETURN_IF_ERROR(Listen(now));
  const bool changed = Judge(now);
  if (changed || now >= next_send_) Send(now);
  return absl::OkStatus();
}

absl::Status Heartbeats::Listen(Clock::time_point now) {
  for (int rank = 0; rank < size_; ++rank) {
    Peer& peer = peers_[rank];
    if (!peer.listens) continue;
    TFRING_RETURN_IF_ERROR(mailbox_.Listen(rank));
    const Mailbox::Heard& heard = mailbox_.heard(rank);
    if (heard.count == peer.heard) continue;
    peer.heard = heard.count;
    peer.last = now;
    if (rank != kCoordinatorRank || heard.heartbeats == heartbeats_) continue;
    heartbeats_ = heard.heartbeats;
    TFRING_ASSIGN_OR_RETURN(const Heartbeat heartbeat,
                            DecodeHeartbeat(heard.heartbeat));
    told_.clear();
    for (const SilentRank& silent : heartbeat.silent) {
      if (silent.rank == rank_) continue;
      told_.push_back({silent.rank, now - ToDuration(silent.seconds)});
    }
  }
  return absl::OkStatus();
}

bool Heartbeats::Judge(Clock::time_point now) {
  std::vector<Silent> silent;
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.listens && now - peer.last >= silence_) {
      silent.push_back({rank, peer.last});
    }
  }
  silent.insert(silent.end(), told_.begin(), told_.end());
  silent_.swap(silent);
  return !std::equal(
      silent.begin(), silent.end(), silent_.begin(), silent_.end(),
      [](const Silent& a, const Silent& b) { return a.rank == b.rank; });
}

void Heartbeats::Send(Clock::time_point now) {
  next_send_ = now + period_;
  if (!sends_) return;
  Heartbeat heartbeat;
  if (rank_ == kCoordinatorRank) {
    for (const Silent& silent : silent_) {
      heartbeat.silent.push_back(
          {silent.rank, Seconds(now - silent.since).count()});
    }
  }
  const auto message = std::make_shared<const std::string>(Encode(heartbeat));
  for (int peer = 0; peer < size_; ++peer) {
    const bool is_due = rank_ == kCoordinatorRank || peer == kCoordinatorRank;
    if (peer != rank_ && is_due) mailbox_.SendHeartbeat(peer, message);
  }
}

}  // namespace tfring
