#include "tfring_ops/transport/shared_memory/node_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/exchange.h"
#include "tfring_ops/transport/shared_memory/shared_channel.h"
#include "tfring_ops/transport/shared_memory/shared_memory.h"
#include "tfring_ops/transport/shared_memory/shared_segment.h"

namespace tfring {
namespace {

// Note [The size of a ring]
// A core writes slowly to a line that another core's cache holds.  A ring that
// is half as large again as the second-level cache is long enough that the
// reader's cache has lost a line before the line is written again, while the
// third level still has it.  If the system does not say, the second-level cache
// is taken to have 1 MiB.  Which part of the ring is used is the writer's
// choice: see way_choice.h.
int64_t WantedRingBytes() {
  const int64_t told = sysconf(_SC_LEVEL2_CACHE_SIZE);
  const int64_t cache_bytes = told > 0 ? told : 1 << 20;
  return std::clamp<int64_t>(cache_bytes * 3 / 2, 512 << 10, 4 << 20);
}

// The size of all memory that a rank shares, however many ranks its node has.
constexpr size_t kSegmentBytes = 4 << 20;

// Gives every rank rank 0's `data`.
template <typename T>
absl::Status BroadcastFromZero(Transport& transport, T& data) {
  if (transport.rank() != 0) {
    return WaitOrAbort(transport, {transport.StartRecv(0, BytesOf(data))});
  }
  std::vector<OperationId> sends;
  for (int peer = 1; peer < transport.size(); ++peer) {
    sends.push_back(transport.StartSend(peer, BytesOf(data)));
  }
  return WaitOrAbort(transport, sends);
}

// The ranks of this rank's node in order, and the memory between them.
//
// Each rank's segment has the channels to its peers, in order.
class Node {
 public:
  explicit Node(const Transport& others) {
    const int own = others.node_of(others.rank());
    for (int rank = 0; rank < others.size(); ++rank) {
      if (others.node_of(rank) != own) continue;
      if (rank == others.rank()) place_ = members_.size();
      members_.push_back(rank);
    }
    segments_.resize(members_.size());
  }

  bool alone() const { return members_.size() == 1; }
  size_t ring_bytes() const { return ring_bytes_; }

  // Collective over the node, with the same wish on all ranks.  `shared` is the
  // outcome on this rank; it is OK if only another rank has failed.
  // REQUIRES: this rank is not alone.
  absl::Status Share(int64_t wanted_ring_bytes, Transport& control,
                     absl::Status& shared) {
    const size_t ring_bytes = std::min<size_t>(
        wanted_ring_bytes, kSegmentBytes / (members_.size() - 1));
    ring_bytes_ = std::max(2 * kPartAlignment, ring_bytes / 4096 * 4096);
    const size_t bytes = (members_.size() - 1) * ChannelBytes();
    std::vector<SegmentAddress> addresses(members_.size());
    SegmentAddress& own = addresses[place_];
    // A channel's ring is allocated by its first send.
    if (auto created = SharedSegment::Reserve(bytes, ChannelBytes(),
                                              sizeof(SharedChannel));
        created.ok()) {
      own = (*created)->address();
      segments_[place_] = *std::move(created);
    } else {
      shared = created.status();
    }
    std::vector<OperationId> operations;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i == place_) continue;
      operations.push_back(
          control.StartRecv(members_[i], BytesOf(addresses[i])));
      operations.push_back(control.StartSend(members_[i], BytesOf(own)));
    }
    TFRING_RETURN_IF_ERROR(WaitOrAbort(control, operations));
    for (size_t i = 0; i < members_.size() && shared.ok(); ++i) {
      const SegmentAddress& address = addresses[i];
      if (i == place_ || address.process == 0) continue;
      if (auto opened = SharedSegment::Open(address, bytes); opened.ok()) {
        segments_[i] = *std::move(opened);
      } else {
        shared = opened.status();
      }
    }
    return absl::OkStatus();
  }

  // REQUIRES: the others have opened this rank's memory.
  void CloseDescriptor() {
    if (segments_[place_]) segments_[place_]->CloseDescriptor();
  }

  // Returns the link to each rank.
  // REQUIRES: every rank has shared its memory.
  std::vector<SharedLink> Links(int size) const {
    std::vector<SharedLink> links(size);
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i == place_) continue;
      links[members_[i]] = {Channel(place_, i), Channel(i, place_)};
    }
    return links;
  }

  // Keeps the memory that the links point to.
  std::shared_ptr<void> TakeMemory() {
    return std::make_shared<std::vector<std::unique_ptr<SharedSegment>>>(
        std::move(segments_));
  }

 private:
  size_t ChannelBytes() const { return SharedChannel::Bytes(ring_bytes_); }

  SharedChannel* Channel(size_t from, size_t to) const {
    const size_t index = to < from ? to : to - 1;
    return reinterpret_cast<SharedChannel*>(segments_[from]->data() +
                                            index * ChannelBytes());
  }

  std::vector<int> members_;  // ranks
  size_t place_ = 0;          // this rank's among them
  size_t ring_bytes_ = 0;
  std::vector<std::unique_ptr<SharedSegment>> segments_;  // by place
};

// Returns a status for all ranks, from the outcome on each: an error if one has
// failed, of which rank 0 warns.
absl::StatusOr<StatusBlock> AgreeOn(StatusBlock outcome, Transport& transport) {
  if (transport.rank() != 0) {
    TFRING_RETURN_IF_ERROR(
        WaitOrAbort(transport, {transport.StartSend(0, BytesOf(outcome))}));
  } else {
    std::vector<StatusBlock> outcomes(transport.size());
    outcomes[0] = outcome;
    std::vector<OperationId> receives;
    for (int peer = 1; peer < transport.size(); ++peer) {
      receives.push_back(transport.StartRecv(peer, BytesOf(outcomes[peer])));
    }
    TFRING_RETURN_IF_ERROR(WaitOrAbort(transport, receives));
    const auto failed =
        std::find_if(outcomes.begin(), outcomes.end(),
                     [](const StatusBlock& each) { return !each.ok(); });
    if (failed != outcomes.end()) {
      outcome = *failed;
      LogWarning(
          0, absl::StrCat("the ranks of a node send each other messages, as "
                          "rank ",
                          failed - outcomes.begin(),
                          " cannot share memory: ", failed->text,
                          ". Slower, but right; TFRING_SHARED_MEMORY=0 asks "
                          "for it without this warning."));
    }
  }
  TFRING_RETURN_IF_ERROR(BroadcastFromZero(transport, outcome));
  return outcome;
}

// Returns true if `node` has memory that all its ranks share.
absl::StatusOr<bool> Agree(Transport& control, SharedMemory shared_memory,
                           Node& node) {
  int64_t ring_bytes =
      shared_memory == SharedMemory::kWithinNodes ? WantedRingBytes() : 0;
  TFRING_RETURN_IF_ERROR(BroadcastFromZero(control, ring_bytes));
  if (ring_bytes == 0) return false;
  absl::Status shared;
  if (!node.alone()) {
    TFRING_RETURN_IF_ERROR(node.Share(ring_bytes, control, shared));
  }
  TFRING_ASSIGN_OR_RETURN(const StatusBlock all,
                          AgreeOn(StatusBlock(shared), control));
  node.CloseDescriptor();
  return all.ok() && !node.alone();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ShareWithinNodes(
    std::unique_ptr<Transport> others, double timeout_seconds,
    SharedMemory shared_memory, Transport* control) {
  if (control == nullptr) control = others.get();
  Node node(*others);
  const absl::StatusOr<bool> shared = Agree(*control, shared_memory, node);
  if (!shared.ok()) {
    others->Abort(shared.status());
    control->Abort(shared.status());
    return shared.status();
  }
  if (!*shared) return others;
  const std::vector<SharedLink> links = node.Links(others->size());
  return MakeSharedMemoryTransport(std::move(others), links, node.ring_bytes(),
                                   node.TakeMemory(), timeout_seconds);
}

}  // namespace tfring
