#include "tfring_ops/transport/shared_memory/node_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
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

// The ring of a channel: small, so that it stays in cache, and large enough for
// a few segments in flight.
constexpr size_t kRingBytes = 512 << 10;
// All that a rank shares, however many ranks its node has.
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

// A rank's message to its node.
struct Introduction {
  SegmentAddress segment;
  uint64_t sample_address = 0;
  uint64_t sample = 0;  // what is there
};

// The outcome of sharing on a rank.
struct Report {
  int32_t failed = 0;
  int32_t reads_directly = 1;  // as far as its node is concerned
  std::array<char, 248> reason{};
};

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
    const size_t budget =
        kSegmentBytes / std::max<size_t>(1, members_.size() - 1);
    ring_bytes_ = std::max(2 * kPartAlignment,
                           std::min(kRingBytes, budget) / 4096 * 4096);
    segments_.resize(members_.size());
    processes_.resize(members_.size());
  }

  // Returns true if this rank can read the memory of its node's other ranks,
  // and then if all can.
  bool reads_directly() const { return reads_directly_; }
  void ReadDirectly(bool all_can) { reads_directly_ = all_can; }
  bool alone() const { return members_.size() == 1; }
  size_t ring_bytes() const { return ring_bytes_; }

  // Collective over the node.  `shared` says how it went on this rank; it is OK
  // at one that only suffers from another's failure.
  absl::Status Share(Transport& control, absl::Status& shared) {
    const size_t bytes = (members_.size() - 1) * ChannelBytes();
    std::vector<Introduction> introductions(members_.size());
    Introduction& own = introductions[place_];
    own.sample_address = reinterpret_cast<uint64_t>(&sample_);
    own.sample = sample_;
    // A channel's ring is allocated by its first send.
    if (auto created = SharedSegment::Reserve(bytes, ChannelBytes(),
                                              sizeof(SharedChannel));
        created.ok()) {
      own.segment = (*created)->address();
      segments_[place_] = *std::move(created);
    } else {
      shared = created.status();
    }
    std::vector<OperationId> operations;
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i == place_) continue;
      operations.push_back(
          control.StartRecv(members_[i], BytesOf(introductions[i])));
      operations.push_back(control.StartSend(members_[i], BytesOf(own)));
    }
    TFRING_RETURN_IF_ERROR(WaitOrAbort(control, operations));
    for (size_t i = 0; i < members_.size() && shared.ok(); ++i) {
      const SegmentAddress& address = introductions[i].segment;
      if (i == place_ || address.process == 0) continue;
      if (auto opened = SharedSegment::Open(address, bytes); opened.ok()) {
        segments_[i] = *std::move(opened);
        processes_[i] = address.process;
        reads_directly_ = reads_directly_ && CanRead(introductions[i]);
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

  // By rank.
  // REQUIRES: every rank has shared its memory.
  std::vector<SharedLink> Links(int size) const {
    std::vector<SharedLink> links(size);
    for (size_t i = 0; i < members_.size(); ++i) {
      if (i == place_) continue;
      SharedLink& link = links[members_[i]];
      link = {Channel(place_, i), Channel(i, place_)};
      if (!reads_directly_) continue;
      link.read_memory = [process = processes_[i]](uint64_t address,
                                                   Bytes target) {
        return ReadProcessMemory(process, address, target);
      };
    }
    return links;
  }

  // Keeps the memory that the links point to.
  std::shared_ptr<void> TakeMemory() {
    return std::make_shared<std::vector<std::unique_ptr<SharedSegment>>>(
        std::move(segments_));
  }

 private:
  // Not in a container of its own, nor where only debuggers may.
  static bool CanRead(const Introduction& peer) {
    uint64_t sample = 0;
    return ReadProcessMemory(peer.segment.process, peer.sample_address,
                             BytesOf(sample)) &&
           sample == peer.sample;
  }

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
  std::vector<int64_t> processes_;                        // by place
  bool reads_directly_ = true;
  // By chance no other process has the same number there.
  const uint64_t sample_ = std::random_device{}() + uint64_t{1};
};

// Returns the report of all ranks; if one has failed, rank 0 warns.
absl::StatusOr<Report> AgreeOn(Report report, Transport& transport) {
  if (transport.rank() != 0) {
    TFRING_RETURN_IF_ERROR(
        WaitOrAbort(transport, {transport.StartSend(0, BytesOf(report))}));
  } else {
    std::vector<Report> reports(transport.size());
    reports[0] = report;
    std::vector<OperationId> receives;
    for (int peer = 1; peer < transport.size(); ++peer) {
      receives.push_back(transport.StartRecv(peer, BytesOf(reports[peer])));
    }
    TFRING_RETURN_IF_ERROR(WaitOrAbort(transport, receives));
    const auto failed =
        std::find_if(reports.begin(), reports.end(),
                     [](const Report& each) { return each.failed != 0; });
    report.reads_directly = std::all_of(
        reports.begin(), reports.end(),
        [](const Report& each) { return each.reads_directly != 0; });
    if (failed != reports.end()) {
      report.failed = 1;
      LogWarning(
          0, absl::StrCat("the ranks of a node send each other messages, as "
                          "rank ",
                          failed - reports.begin(),
                          " cannot share memory: ", failed->reason.data(),
                          ". Slower, but right; TFRING_SHARED_MEMORY=0 asks "
                          "for it without this warning."));
    }
  }
  TFRING_RETURN_IF_ERROR(BroadcastFromZero(transport, report));
  return report;
}

// Returns true if `node` has memory that all its ranks share.
absl::StatusOr<bool> Agree(Transport& control, SharedMemory shared_memory,
                           Node& node) {
  int32_t wanted = shared_memory == SharedMemory::kWithinNodes;
  TFRING_RETURN_IF_ERROR(BroadcastFromZero(control, wanted));
  if (!wanted) return false;
  absl::Status shared;
  if (!node.alone()) TFRING_RETURN_IF_ERROR(node.Share(control, shared));
  Report own{!shared.ok(), node.reads_directly()};
  shared.message().copy(own.reason.data(), own.reason.size() - 1);
  TFRING_ASSIGN_OR_RETURN(const Report all, AgreeOn(own, control));
  node.CloseDescriptor();
  node.ReadDirectly(all.reads_directly != 0);
  return all.failed == 0 && !node.alone();
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
