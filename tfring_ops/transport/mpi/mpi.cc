#include "tfring_ops/transport/mpi/mpi.h"

#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/forever.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/cuda/progress_context.h"

namespace tfring {
namespace {

// Returns Unavailable with MPI's own text and the `call` that failed, unless
// `error` is MPI_SUCCESS.
absl::Status FromMpi(int error, const char* call) {
  if (error == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(error, text, &length);
  return absl::UnavailableError(
      absl::StrCat(call, " failed: ", absl::string_view(text, length)));
}

using Clock = std::chrono::steady_clock;

constexpr int kDataTag = 0;
constexpr int kAbortTag = 1;
// The last message of a rank with a failed transport: text, zero-terminated.
using AbortText = std::array<char, 512>;
// Note [Messages in pieces]
// A message longer than MPI's eager limit, 64 KiB with Open MPI's TCP, is sent
// only when its receiver has answered, and that answer waits on the link behind
// all data in the same direction.  So a segment travels in pieces that need no
// answer.  MPI keeps a copy of each piece that the link has not taken.  To
// bound that memory, an empty message is sent behind the last one,
// synchronously: while many of these receipts are in flight, further sends
// wait.  A message longer than segments should be is not cut.
//
// The receiver cuts a message as the sender does: sizes that differ by whole
// pieces are only noticed at the next message.
constexpr size_t kPieceBytes = 63 << 10;
constexpr size_t kMostPieces = 16;
// The most receipts in flight for each peer.
constexpr size_t kMostReceipts = 24;
// How long Abort lets operations in flight end by themselves.
constexpr std::chrono::milliseconds kAbortGrace{500};

// Returns, for each rank, the lowest rank of its node.  Collective.
absl::StatusOr<std::vector<int>> Nodes(MPI_Comm comm) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm node = MPI_COMM_NULL;
  TFRING_RETURN_IF_ERROR(
      FromMpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank,
                                  MPI_INFO_NULL, &node),
              "MPI_Comm_split_type"));
  int lowest = rank;
  TFRING_RETURN_IF_ERROR(
      FromMpi(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast"));
  MPI_Comm_free(&node);
  std::vector<int> nodes(size);
  TFRING_RETURN_IF_ERROR(FromMpi(
      MPI_Allgather(&lowest, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm),
      "MPI_Allgather"));
  return nodes;
}

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm comm, std::vector<int> nodes, double timeout_seconds)
      : comm_(comm),
        nodes_(std::move(nodes)),
        timeout_seconds_(timeout_seconds),
        outboxes_(nodes_.size()) {
    MPI_Comm_rank(comm_, &rank_);
    broken_ = FromMpi(
        MPI_Irecv(abort_received_->data(), abort_received_->size(), MPI_CHAR,
                  MPI_ANY_SOURCE, kAbortTag, comm_, &abort_request_),
        "MPI_Irecv");
  }

  ~MpiTransport() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return;
    if (!Abandon(abort_request_, Clock::now() + kAbortGrace)) {
      [[maybe_unused]] const auto* const kept = abort_received_.release();
    }
    // After an abort, messages that nobody will receive may still be in flight:
    // a later communicator must not get this one's context id, and with it
    // those messages.
    for (Outbox& outbox : outboxes_) {
      for (MPI_Request& receipt : outbox.receipts) {
        if (receipt != MPI_REQUEST_NULL) MPI_Request_free(&receipt);
      }
    }
    if (broken_.ok()) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(nodes_.size()); }
  int node_of(int peer) const override { return nodes_[peer]; }

  // Any call into MPI may make progress on messages of a GPU's memory.
  OperationId StartSend(int peer, ConstBytes data) override {
    EnterProgressContext();
    const OperationId request =
        Claim(Operation::Kind::kSend, peer, data.size());
    Operation& operation = At(request);
    operation.sent = data.data();
    if (!operation.status.ok()) return request;
    outboxes_[peer].waiting.push_back(request);
    ++waiting_sends_;
    Advance(outboxes_[peer]);
    return request;
  }

  OperationId StartRecv(int peer, Bytes data) override {
    EnterProgressContext();
    const OperationId request =
        Claim(Operation::Kind::kRecv, peer, data.size());
    Operation& operation = At(request);
    const auto start = [&](size_t offset, int bytes, MPI_Request* piece) {
      return FromMpi(MPI_Irecv(data.data() + offset, bytes, MPI_BYTE, peer,
                               kDataTag, comm_, piece),
                     "MPI_Irecv");
    };
    ForEachPiece(operation, start);
    if (IsCut(operation) && operation.status.ok()) {
      operation.pieces.push_back(MPI_REQUEST_NULL);
      operation.status = start(data.size(), 0, &operation.pieces.back());
    }
    return request;
  }

  absl::StatusOr<bool> Test(OperationId request) override {
    if (request == kNoOperation) return true;
    EnterProgressContext();
    Operation& operation = At(request);
    if (waiting_sends_ > 0) AdvanceAll();
    TestPieces(operation);
    if (operation.status.ok() && !operation.IsComplete()) {
      if (++tests_ % kTestsPerAbortCheck == 0) {
        TFRING_RETURN_IF_ERROR(CheckForAbort());
      }
      return false;
    }
    if (operation.status.ok() && operation.kind == Operation::Kind::kRecv) {
      operation.status = CheckSize(operation);
    }
    // A failed operation is kept: some of its pieces may be in flight.
    if (!operation.status.ok()) return operation.status;
    free_.push_back(request);
    return true;
  }

  absl::Status Wait(OperationId request) override {
    if (request == kNoOperation) return absl::OkStatus();
    const int peer = At(request).peer;
    const Clock::time_point begin = Clock::now();
    for (Backoff backoff(kYields);; backoff.Pause()) {
      TFRING_ASSIGN_OR_RETURN(const bool complete, Test(request));
      if (complete) return absl::OkStatus();
      if (!backoff.SeldomTurn()) continue;
      if (attend_) TFRING_RETURN_IF_ERROR(attend_());
      if (IsTooLong(Clock::now() - begin, timeout_seconds_)) {
        return TimedOut(peer, timeout_seconds_);
      }
    }
  }

  void SetAttendant(std::function<absl::Status()> attend) override {
    attend_ = std::move(attend);
  }

  bool TakesDeviceMemory(int /*peer*/) const override {
    return takes_device_memory_;
  }

  // Any call into MPI makes progress on all; this one also checks for an abort.
  absl::Status Progress() override {
    EnterProgressContext();
    if (waiting_sends_ > 0) AdvanceAll();
    return broken_.ok() ? CheckForAbort() : broken_;
  }

  void Abort(const absl::Status& reason) override {
    if (!broken_.ok()) return;
    EnterProgressContext();
    broken_ = reason;
    // MPI may read the text long after this object is destroyed.
    const auto text = std::make_shared<AbortText>();
    KeepForever(text);
    reason.message().copy(text->data(), text->size() - 1);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Isend(text->data(), text->size(), MPI_CHAR, peer, kAbortTag,
                    comm_, &request) == MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
    AbandonAll();
  }

  bool HasAbandoned() const override { return has_abandoned_; }

 private:
  struct Operation {
    enum class Kind { kSend, kRecv };
    Kind kind;
    int peer;
    size_t bytes;
    const std::byte* sent;            // where a send takes it from
    std::vector<MPI_Request> pieces;  // empty for a send that has to wait
    size_t complete_pieces;
    size_t received_bytes;
    absl::Status status;

    bool IsComplete() const {
      return !pieces.empty() && complete_pieces == pieces.size();
    }
  };

  // The sends to one peer, in order.
  struct Outbox {
    std::deque<OperationId> waiting;
    std::deque<MPI_Request> receipts;  // of the sends in flight
  };

  // Waits for the wire are long; benchmarks/results/2026-11-22.md has the costs
  // of longer spins.
  static constexpr int kYields = 128;
  // A look at the abort channel costs as much as a test of the operation.
  static constexpr int kTestsPerAbortCheck = 64;

  Operation& At(OperationId request) { return operations_[request - 1]; }

  OperationId Claim(Operation::Kind kind, int peer, size_t bytes) {
    if (free_.empty()) {
      operations_.emplace_back();
      free_.push_back(operations_.size());
    }
    const OperationId request = free_.back();
    free_.pop_back();
    Operation& operation = At(request);
    operation.kind = kind;
    operation.peer = peer;
    operation.bytes = bytes;
    operation.pieces.clear();
    operation.complete_pieces = operation.received_bytes = 0;
    operation.status = broken_;
    return request;
  }

  static bool IsCut(const Operation& operation) {
    return operation.bytes > kPieceBytes &&
           operation.bytes <= kMostPieces * kPieceBytes;
  }

  // Starts the pieces by start(offset, bytes, &request), up to the first that
  // fails.  See Note [Messages in pieces].
  template <typename Start>
  static void ForEachPiece(Operation& operation, const Start& start) {
    if (operation.status.ok() && operation.bytes > INT_MAX) {
      operation.status = absl::InvalidArgumentError(absl::StrCat(
          "a message of ", operation.bytes, " bytes is too long for MPI"));
    }
    if (!operation.status.ok()) return;
    size_t offset = 0;
    do {
      size_t bytes = operation.bytes - offset;
      if (IsCut(operation)) bytes = std::min(bytes, kPieceBytes);
      operation.pieces.push_back(MPI_REQUEST_NULL);
      operation.status =
          start(offset, static_cast<int>(bytes), &operation.pieces.back());
      offset += bytes;
    } while (operation.status.ok() && offset < operation.bytes);
  }

  void Launch(Operation& operation, Outbox& outbox) {
    ForEachPiece(operation, [&](size_t offset, int bytes, MPI_Request* piece) {
      return FromMpi(MPI_Isend(operation.sent + offset, bytes, MPI_BYTE,
                               operation.peer, kDataTag, comm_, piece),
                     "MPI_Isend");
    });
    if (!IsCut(operation) || !operation.status.ok()) return;
    outbox.receipts.push_back(MPI_REQUEST_NULL);
    operation.status =
        FromMpi(MPI_Issend(nullptr, 0, MPI_BYTE, operation.peer, kDataTag,
                           comm_, &outbox.receipts.back()),
                "MPI_Issend");
  }

  void TestPieces(Operation& operation) {
    while (operation.status.ok() &&
           operation.complete_pieces < operation.pieces.size()) {
      MPI_Request& piece = operation.pieces[operation.complete_pieces];
      int complete = 0, bytes = 0;
      MPI_Status status;
      operation.status =
          FromMpi(MPI_Test(&piece, &complete, &status), "MPI_Test");
      if (!complete) return;
      ++operation.complete_pieces;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      operation.received_bytes += bytes;
    }
  }

  // Sends the messages that have waited for earlier ones.
  void Advance(Outbox& outbox) {
    while (!outbox.receipts.empty()) {
      int complete = 0;
      // An error here is reported by the operations themselves.
      if (MPI_Test(&outbox.receipts.front(), &complete, MPI_STATUS_IGNORE) ==
              MPI_SUCCESS &&
          !complete) {
        break;
      }
      outbox.receipts.pop_front();
    }
    while (!outbox.waiting.empty() && outbox.receipts.size() < kMostReceipts) {
      Operation& first = At(outbox.waiting.front());
      outbox.waiting.pop_front();
      --waiting_sends_;
      Launch(first, outbox);
    }
  }

  void AdvanceAll() {
    for (Outbox& outbox : outboxes_) Advance(outbox);
  }

  static absl::Status CheckSize(const Operation& operation) {
    if (operation.received_bytes == operation.bytes) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        "rank ", operation.peer, " sent ", operation.received_bytes,
        " bytes where ", operation.bytes, " were expected"));
  }

  absl::Status CheckForAbort() {
    if (abort_request_ == MPI_REQUEST_NULL) return absl::OkStatus();
    int complete = 0;
    // A receive from any rank, which includes a lost one: an MPI that survives
    // the loss reports it here.
    if (const absl::Status status =
            FromMpi(MPI_Test(&abort_request_, &complete, MPI_STATUS_IGNORE),
                    "a rank is lost: MPI_Test");
        !status.ok() || !complete) {
      return status;
    }
    // The rank that aborted has notified all ranks, so this rank need not.
    broken_ = absl::UnavailableError(abort_received_->data());
    AbandonAll();
    return broken_;
  }

  void AbandonAll() {
    // All operations share one deadline, because a pipeline may have many sends
    // in flight.
    const Clock::time_point deadline = Clock::now() + kAbortGrace;
    for (Operation& operation : operations_) {
      for (MPI_Request& piece : operation.pieces) {
        if (!Abandon(piece, deadline)) has_abandoned_ = true;
      }
      operation.status = broken_;
    }
    for (Outbox& outbox : outboxes_) {
      for (MPI_Request& receipt : outbox.receipts) Abandon(receipt, deadline);
      outbox = {};
    }
    waiting_sends_ = 0;
  }

  // Ends an operation that nobody will complete.  Returns false if it could not
  // by `deadline`: MPI may use its memory at any time.
  static bool Abandon(MPI_Request& request, Clock::time_point deadline) {
    if (request == MPI_REQUEST_NULL) return true;
    MPI_Cancel(&request);
    int complete = 0;
    do {
      if (MPI_Test(&request, &complete, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        complete = true;  // with an error, for example of a lost rank
        break;
      }
    } while (!complete && Clock::now() < deadline);
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    return complete;
  }

  MPI_Comm comm_;
  const std::vector<int> nodes_;  // by rank
  const bool takes_device_memory_ = MpiIsCudaAware();
  const double timeout_seconds_;
  std::function<absl::Status()> attend_;  // may be empty
  int rank_ = 0;
  std::vector<Operation> operations_;
  std::vector<Outbox> outboxes_;   // by peer
  size_t waiting_sends_ = 0;       // in all of them
  std::vector<OperationId> free_;  // operations_ that are not in use
  int64_t tests_ = 0;
  MPI_Request abort_request_ = MPI_REQUEST_NULL;
  // The text is allocated separately, because it may have to outlive this
  // object.
  std::unique_ptr<AbortText> abort_received_ = std::make_unique<AbortText>();
  bool has_abandoned_ = false;
  absl::Status broken_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeMpiTransport(
    int32_t comm, double timeout_seconds) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  TFRING_RETURN_IF_ERROR(
      FromMpi(MPI_Comm_dup(MPI_Comm_f2c(comm), &duplicate), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  TFRING_ASSIGN_OR_RETURN(std::vector<int> nodes, Nodes(duplicate));
  return std::make_unique<MpiTransport>(duplicate, std::move(nodes),
                                        timeout_seconds);
}

// Open MPI and MPICH have a function for this; it is in no header that all of
// them have.
bool MpiIsCudaAware() {
  void* const query = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
  return query != nullptr && reinterpret_cast<int (*)()>(query)() == 1;
}

}  // namespace tfring
