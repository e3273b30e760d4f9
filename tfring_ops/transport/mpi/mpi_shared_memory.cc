#include "tfring_ops/transport/mpi/mpi_shared_memory.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/mpi/mpi.h"
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

// A rank's message to the others of its node.
struct Offer {
  int64_t rank;
  SegmentAddress address;
};

// The ranks of a node in order, and the memory between them.
//
// Each rank's segment has the channels to the other ranks, in order.
class Node {
 public:
  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  // Not freed after an error: a lost rank would have to take part.
  ~Node() {
    if (comm_ != MPI_COMM_NULL && usable_) MPI_Comm_free(&comm_);
  }

  // Collective over `comm`.
  absl::Status Find(MPI_Comm comm) {
    MPI_Comm_rank(comm, &rank_);
    TFRING_RETURN_IF_ERROR(
        Check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank_,
                                  MPI_INFO_NULL, &comm_),
              "MPI_Comm_split_type"));
    MPI_Comm_rank(comm_, &local_rank_);
    MPI_Comm_size(comm_, &local_size_);
    const size_t budget = kSegmentBytes / std::max(1, local_size_ - 1);
    ring_bytes_ = std::max(2 * kPartAlignment,
                           std::min(kRingBytes, budget) / 4096 * 4096);
    return absl::OkStatus();
  }

  bool alone() const { return local_size_ == 1; }
  size_t ring_bytes() const { return ring_bytes_; }

  // Collective over the node, whatever goes wrong but MPI.  OK at a rank that
  // only suffers from another's failure.
  absl::Status Share() {
    const size_t bytes = (local_size_ - 1) * ChannelBytes();
    segments_.resize(local_size_);
    offers_.resize(local_size_);
    absl::Status status;
    Offer offer{rank_, {}};
    if (auto created = SharedSegment::Create(bytes); created.ok()) {
      offer.address = (*created)->address();
      segments_[local_rank_] = *std::move(created);
    } else {
      status = created.status();
    }
    TFRING_RETURN_IF_ERROR(
        Check(MPI_Allgather(&offer, sizeof(offer), MPI_BYTE, offers_.data(),
                            sizeof(offer), MPI_BYTE, comm_),
              "MPI_Allgather"));
    for (int peer = 0; peer < local_size_ && status.ok(); ++peer) {
      const SegmentAddress& address = offers_[peer].address;
      if (peer == local_rank_ || address.process == 0) continue;
      if (auto opened = SharedSegment::Open(address, bytes); opened.ok()) {
        segments_[peer] = *std::move(opened);
      } else {
        status = opened.status();
      }
    }
    TFRING_RETURN_IF_ERROR(Check(MPI_Barrier(comm_), "MPI_Barrier"));
    if (segments_[local_rank_]) segments_[local_rank_]->CloseDescriptor();
    return status;
  }

  // By rank of the whole communicator.
  // REQUIRES: every rank has shared its memory.
  std::vector<SharedLink> Links(int size) const {
    std::vector<SharedLink> links(size);
    for (int peer = 0; peer < local_size_; ++peer) {
      if (peer == local_rank_) continue;
      links[offers_[peer].rank] = {Channel(local_rank_, peer),
                                   Channel(peer, local_rank_)};
    }
    return links;
  }

  // Keeps what the links point to.
  std::shared_ptr<void> TakeMemory() {
    return std::make_shared<std::vector<std::unique_ptr<SharedSegment>>>(
        std::move(segments_));
  }

 private:
  size_t ChannelBytes() const { return SharedChannel::Bytes(ring_bytes_); }

  SharedChannel* Channel(int from, int to) const {
    const int index = to < from ? to : to - 1;
    return reinterpret_cast<SharedChannel*>(segments_[from]->data() +
                                            index * ChannelBytes());
  }

  absl::Status Check(int error, const char* call) {
    usable_ = usable_ && error == MPI_SUCCESS;
    return FromMpi(error, call);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  bool usable_ = true;
  int rank_ = 0, local_rank_ = 0, local_size_ = 0;
  size_t ring_bytes_ = 0;
  std::vector<Offer> offers_;                             // by local rank
  std::vector<std::unique_ptr<SharedSegment>> segments_;  // by local rank
};

// Returns true if `status` is OK on every rank; if not, rank 0 warns.
absl::StatusOr<bool> AgreeOn(const absl::Status& status, MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  int failed = status.ok() ? size : rank;
  TFRING_RETURN_IF_ERROR(
      FromMpi(MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MIN, comm),
              "MPI_Allreduce"));
  if (failed == size) return true;
  std::array<char, 256> reason{};
  status.message().copy(reason.data(), reason.size() - 1);
  TFRING_RETURN_IF_ERROR(
      FromMpi(MPI_Bcast(reason.data(), static_cast<int>(reason.size()),
                        MPI_CHAR, failed, comm),
              "MPI_Bcast"));
  if (rank == 0) {
    LogWarning(rank, absl::StrCat(
                         "the ranks of a node talk by MPI, as rank ", failed,
                         " cannot share memory: ", reason.data(),
                         ". Slower, but right; TFRING_SHARED_MEMORY=0 asks for "
                         "it without this warning."));
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeNodeTransport(
    int32_t comm_handle, double timeout_seconds, SharedMemory shared_memory) {
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> mpi,
                          MakeMpiTransport(comm_handle, timeout_seconds));
  MPI_Comm comm = MPI_Comm_f2c(comm_handle);
  int wanted = shared_memory == SharedMemory::kWithinNodes;
  TFRING_RETURN_IF_ERROR(
      FromMpi(MPI_Bcast(&wanted, 1, MPI_INT, 0, comm), "MPI_Bcast"));
  if (!wanted) return mpi;

  Node node;
  TFRING_RETURN_IF_ERROR(node.Find(comm));
  absl::Status status;
  if (!node.alone()) status = node.Share();
  TFRING_ASSIGN_OR_RETURN(const bool shared, AgreeOn(status, comm));
  if (!shared || node.alone()) return mpi;
  const std::vector<SharedLink> links = node.Links(mpi->size());
  return MakeSharedMemoryTransport(std::move(mpi), links, node.ring_bytes(),
                                   node.TakeMemory(), timeout_seconds);
}

}  // namespace tfring
