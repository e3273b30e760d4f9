#include "tfring_ops/nccl/communicator.h"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/base/backoff.h"

namespace tfring {
namespace {

// A rank's message to all ranks during a collective step of NCCL's setup.
struct Word {
  // kGivenUp: another rank has failed.
  enum class State { kBusy, kDone, kFailed, kGivenUp };
  State state = State::kBusy;
  std::array<char, 500> reason{};
};

// Calls `done` until it returns true on every rank, or an error on one, which
// is then the error of all.  No rank keeps waiting for a rank that has failed.
absl::Status UntilAllAreDone(
    Transport& host, const std::function<absl::StatusOr<bool>()>& done) {
  std::vector<Word> words(host.size());
  Word& own = words[host.rank()];
  std::vector<OperationId> requests(host.size(), kNoOperation);
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank()) continue;
    requests[peer] = host.StartRecv(peer, BytesOf(words[peer]));
  }
  for (Backoff backoff; own.state == Word::State::kBusy; backoff.Pause()) {
    TFRING_RETURN_IF_ERROR(host.Progress());
    const absl::StatusOr<bool> is_done = done();
    if (!is_done.ok()) {
      own.state = Word::State::kFailed;
      is_done.status().message().copy(own.reason.data(), own.reason.size() - 1);
    } else if (*is_done) {
      own.state = Word::State::kDone;
    }
    for (int peer = 0; peer < host.size(); ++peer) {
      if (requests[peer] == kNoOperation) continue;
      TFRING_ASSIGN_OR_RETURN(const bool has_come, host.Test(requests[peer]));
      if (!has_come) continue;
      requests[peer] = kNoOperation;
      if (own.state == Word::State::kBusy &&
          words[peer].state == Word::State::kFailed) {
        own.state = Word::State::kGivenUp;
      }
    }
  }
  for (int peer = 0; peer < host.size(); ++peer) {
    if (peer == host.rank()) continue;
    requests.push_back(host.StartSend(peer, BytesOf(own)));
  }
  for (const OperationId request : requests) {
    TFRING_RETURN_IF_ERROR(host.Wait(request));
  }
  for (int rank = 0; rank < host.size(); ++rank) {
    if (words[rank].state != Word::State::kFailed) continue;
    return absl::UnavailableError(
        absl::StrCat("rank ", rank, ": ", words[rank].reason.data()));
  }
  return absl::OkStatus();
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& nccl,
                                   const CudaDriver& driver,
                                   const CudaDevice& device, Transport& host,
                                   LaunchPlace place, double timeout_seconds)
    : nccl_(nccl),
      driver_(driver),
      device_(device),
      host_(host),
      place_(std::move(place)),
      timeout_seconds_(timeout_seconds) {}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    const NcclLibrary& nccl, const CudaDevice& device, Transport& host,
    const NcclUniqueId& id, LaunchPlace place, double timeout_seconds) {
  TFRING_ASSIGN_OR_RETURN(const CudaDriver* const driver, CudaDriver::Get());
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(
      nccl, *driver, device, host, std::move(place), timeout_seconds));
  if (absl::Status status = made->Open(id); !status.ok()) {
    made->Abort(status);
    return status;
  }
  return made;
}

absl::Status NcclCommunicator::Open(const NcclUniqueId& id) {
  // NCCL allocates memory on the GPU, and waits for the GPU's work for that.
  TFRING_ASSIGN_OR_RETURN(const LaunchOrder::Turn turn,
                          place_.Await(host_, timeout_seconds_));
  const CudaScope scope(driver_, device_.context());
  absl::Status started = scope.status();
  if (started.ok()) {
    absl::StatusOr<std::unique_ptr<CudaEvent>> event =
        CudaEvent::Create(device_);
    started = event.status();
    if (started.ok()) launched_ = *std::move(event);
  }
  if (started.ok()) {
    NcclConfig config;
    started = nccl_.ncclCommInitRankConfig(&comm_, host_.size(), id,
                                           host_.rank(), &config);
  }
  const Clock::time_point begin = place_.clock->Now();
  return UntilAllAreDone(host_, [&]() -> absl::StatusOr<bool> {
    TFRING_RETURN_IF_ERROR(started);
    if (IsTooLong(place_.clock->Now() - begin, timeout_seconds_)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "NCCL has not connected the ranks for ", timeout_seconds_, " s"));
    }
    return Settled();
  });
}

NcclCommunicator::~NcclCommunicator() {
  if (place_.order != nullptr) place_.order->Forget(launched_);
  if (comm_ == nullptr) return;
  const CudaScope scope(driver_, device_.context());
  // A settled communicator has nothing left to wait for.  An abort ends NCCL's
  // kernels by a flag that they read, whatever the other ranks do.
  absl::Status status = nccl_.ncclCommFinalize(comm_);
  if (status.ok()) status = Settle();
  if (status.ok()) {
    nccl_.ncclCommDestroy.Result(comm_);
  } else {
    nccl_.ncclCommAbort.Result(comm_);
  }
}

absl::StatusOr<bool> NcclCommunicator::Settled() const {
  int state = kNcclSuccess;
  TFRING_RETURN_IF_ERROR(nccl_.ncclCommGetAsyncError(comm_, &state));
  TFRING_RETURN_IF_ERROR(nccl_.Check(state, "NCCL"));
  return state != kNcclInProgress;
}

absl::Status NcclCommunicator::Settle() {
  const Clock::time_point begin = place_.clock->Now();
  for (Backoff backoff;; backoff.Pause()) {
    TFRING_ASSIGN_OR_RETURN(const bool settled, Settled());
    if (settled) return absl::OkStatus();
    TFRING_RETURN_IF_ERROR(host_.Progress());
    if (backoff.SeldomTurn()) TFRING_RETURN_IF_ERROR(CheckWait(begin));
  }
}

absl::Status NcclCommunicator::CheckWait(Clock::time_point since) const {
  if (!IsTooLong(place_.clock->Now() - since, timeout_seconds_)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "NCCL has waited for another rank for ", timeout_seconds_, " s"));
}

absl::Status NcclCommunicator::Then(std::function<void()> done) {
  TFRING_RETURN_IF_ERROR(broken_);
  if (events_.empty()) {
    TFRING_ASSIGN_OR_RETURN(events_.emplace_back(), CudaEvent::Create(device_));
  }
  TFRING_RETURN_IF_ERROR(events_.back()->Record(device_.stream()));
  if (marks_.empty()) first_since_ = place_.clock->Now();
  marks_.push_back({std::move(events_.back()), std::move(done)});
  events_.pop_back();
  is_marked_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> NcclCommunicator::Poll() {
  TFRING_RETURN_IF_ERROR(broken_);
  bool some_are_due = false;
  while (!marks_.empty()) {
    // Look for errors of the communicator first: after an error nothing can be
    // assumed of its work, whatever the event says.
    TFRING_RETURN_IF_ERROR(Settled().status());
    TFRING_ASSIGN_OR_RETURN(const bool is_due, marks_.front().event->Done());
    if (!is_due) {
      TFRING_RETURN_IF_ERROR(CheckWait(first_since_));
      break;
    }
    some_are_due = true;
    Mark mark = std::move(marks_.front());
    marks_.pop_front();
    events_.push_back(std::move(mark.event));
    first_since_ = place_.clock->Now();
    mark.done();
  }
  return some_are_due;
}

absl::Status NcclCommunicator::Finish() {
  TFRING_RETURN_IF_ERROR(broken_);
  if (!is_marked_) TFRING_RETURN_IF_ERROR(Then([] {}));
  for (Backoff backoff; !marks_.empty(); backoff.Pause()) {
    TFRING_RETURN_IF_ERROR(Poll().status());
    TFRING_RETURN_IF_ERROR(host_.Progress());
  }
  return absl::OkStatus();
}

void NcclCommunicator::Abort(const absl::Status& reason) {
  if (broken_.ok()) broken_ = reason;
  if (comm_ != nullptr) {
    const CudaScope scope(driver_, device_.context());
    nccl_.ncclCommAbort.Result(std::exchange(comm_, nullptr));
  }
  marks_.clear();
}

}  // namespace tfring
