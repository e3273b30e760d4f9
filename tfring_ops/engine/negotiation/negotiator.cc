#include "tfring_ops/engine/negotiation/negotiator.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/negotiation/fusion.h"
#include "tfring_ops/engine/timeline.h"

namespace tfring {
namespace {

// How often rank 0 looks for stalls and late requests.
constexpr std::chrono::milliseconds kLookPeriod{50};

constexpr int64_t kMostKeptBackBytes = 64 << 10;

// How long a rank waits under a cached schedule before it leaves: see
// CheckPatience.
double PatienceSeconds(const Options& options) {
  double patience = std::numeric_limits<double>::infinity();
  for (const double limit :
       {options.stall_check_seconds, options.stall_shutdown_seconds}) {
    if (limit > 0) patience = std::min({patience, limit / 10, 1.0});
  }
  return patience;
}

std::vector<int> NodesOf(const Transport& transport) {
  std::vector<int> nodes;
  for (int peer = 0; peer < transport.size(); ++peer) {
    nodes.push_back(transport.node_of(peer));
  }
  return nodes;
}

}  // namespace

Negotiator::Negotiator(const Options& options, const Members& members,
                       Transport& control, const Clock& clock)
    : options_(options),
      members_(members),
      clock_(clock),
      rank_(control.rank()),
      patience_seconds_(PatienceSeconds(options)),
      neighbors_(
          NeighborsOf(rank_, NodesOf(control), options.max_progress_peers)),
      all_neighbors_(neighbors_.All()),
      mailbox_(control),
      heartbeats_(options, rank_, control.size(), mailbox_, clock_.Now()),
      decoder_(control.size()),
      left_(control.size()) {
  if (rank_ == kCoordinatorRank) coordinator_.emplace(options, members);
}

absl::StatusOr<bool> Negotiator::Progress(
    std::vector<CollectiveRequest> requests, bool shutdown) {
  shutdown_requested_ = shutdown;
  for (CollectiveRequest& request : requests) {
    unsent_.push_back(std::move(request));
  }
  const Clock::time_point now = clock_.Now();
  TFRING_ASSIGN_OR_RETURN(const bool progressed, ProgressMessages(now));
  // Heartbeats among the messages that have arrived are read by now.
  TFRING_RETURN_IF_ERROR(heartbeats_.Look(now));
  return progressed;
}

absl::StatusOr<bool> Negotiator::ProgressMessages(Clock::time_point now) {
  bool progressed = false;
  TFRING_RETURN_IF_ERROR(mailbox_.Collect());
  if (schedule_) {
    TFRING_ASSIGN_OR_RETURN(progressed, FollowSchedule(now));
    if (schedule_) return progressed;
  }
  if (SendRequests()) progressed = true;
  TFRING_ASSIGN_OR_RETURN(const bool received, coordinator_
                                                   ? ReceiveRequests()
                                                   : ReceiveResponses());
  if (coordinator_) TFRING_RETURN_IF_ERROR(Decide(now));
  return progressed || received;
}

bool Negotiator::SendRequests() {
  // A shutdown request is also the answer to a shutdown response: the
  // coordinator waits for one from every rank.
  RequestList list{{}, shutdown_requested_ || shutdown_received_, schedules_};
  if (left_[rank_] || (unsent_.empty() && !list.shutdown)) return false;
  list.requests.assign(std::make_move_iterator(unsent_.begin()),
                       std::make_move_iterator(unsent_.end()));
  unsent_.clear();
  // Nothing may follow a shutdown request: the coordinator reads no further.
  left_[rank_] = list.shutdown;
  if (coordinator_) {
    const Clock::time_point now = clock_.Now();
    for (const CollectiveRequest& request : list.requests) {
      coordinator_->Add(rank_, request, now);
    }
    if (list.shutdown) Depart(rank_);
  } else {
    if (list.shutdown) heartbeats_.StopSending();
    mailbox_.Send(kCoordinatorRank,
                  std::make_shared<const std::string>(Encode(list)));
  }
  // Keep the requests until a response answers them: if a schedule begins
  // before that, the coordinator forgets them.
  for (CollectiveRequest& request : list.requests) {
    const std::string name = request.name;
    asked_.insert_or_assign(name, Asked{asked_count_++, std::move(request)});
  }
  return true;
}

absl::StatusOr<bool> Negotiator::ReceiveRequests() {
  // Most ranks send the same bytes: what has to be done for each request is
  // then done once for a row of them.
  std::vector<int> peers;
  std::string same;
  bool received = false;
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (peer == kCoordinatorRank || left_[peer]) continue;
    TFRING_ASSIGN_OR_RETURN(std::optional<std::string> message,
                            mailbox_.Poll(peer));
    if (!message) continue;
    received = true;
    if (!peers.empty() && *message != same) {
      TFRING_RETURN_IF_ERROR(AddRequests(peers, same));
      peers.clear();
    }
    if (peers.empty()) same = *std::move(message);
    peers.push_back(peer);
  }
  if (!peers.empty()) TFRING_RETURN_IF_ERROR(AddRequests(peers, same));
  return received;
}

absl::Status Negotiator::AddRequests(const std::vector<int>& peers,
                                     const std::string& message) {
  TFRING_ASSIGN_OR_RETURN(const RequestListDecoder::List list,
                          decoder_.Decode(peers, message));
  // The list was sent before its sender had heard of the cached schedule, and
  // is sent again afterwards.
  if (list.schedules < schedules_) return absl::OkStatus();
  const Clock::time_point now = clock_.Now();
  // A departure voids all requests after it, and so those of the other peers.
  absl::Span<const int> submitting = peers;
  if (list.shutdown) submitting = submitting.first(1);
  for (KnownRequest* const known : list.requests) {
    coordinator_->Add(submitting, *known, now);
  }
  if (list.shutdown) {
    for (const int peer : peers) Depart(peer);
  }
  return absl::OkStatus();
}

void Negotiator::Depart(int rank) {
  left_[rank] = true;
  heartbeats_.StopListening(rank);
  coordinator_->Depart(rank);
}

absl::StatusOr<bool> Negotiator::ReceiveResponses() {
  // Nothing follows the shutdown response.
  if (shutdown_received_) return false;
  TFRING_ASSIGN_OR_RETURN(std::optional<std::string> message,
                          mailbox_.Poll(kCoordinatorRank));
  if (!message) return false;
  TFRING_ASSIGN_OR_RETURN(ResponseList response_list,
                          DecodeResponseList(*message));
  Accept(std::move(response_list));
  return true;
}

absl::Status Negotiator::Decide(Clock::time_point now) {
  if (now - last_look_ > kLookPeriod) {
    last_look_ = now;
    std::vector<int32_t> silent;
    for (const Heartbeats::Silent& one : heartbeats_.silent()) {
      silent.push_back(one.rank);
    }
    TFRING_RETURN_IF_ERROR(coordinator_->CheckStalls(now, silent));
  }
  // Decide one list at a time: requests that become ready while this rank runs
  // the last one can share a message.
  if (!decisions_.empty()) return absl::OkStatus();
  ResponseList response_list = coordinator_->TakeResponses();
  if (response_list.empty()) return absl::OkStatus();
  const auto message =
      std::make_shared<const std::string>(Encode(response_list));
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (peer != kCoordinatorRank) mailbox_.Send(peer, message);
  }
  // The coordinator's rank takes the list that it has sent, like any rank, so
  // that all run the same in the same order.
  Accept(std::move(response_list));
  return absl::OkStatus();
}

void Negotiator::Accept(ResponseList response_list) {
  // A rank that an error does not name may have a request of that name that
  // arrived too late to fail with the rest, and still waits for an answer.
  for (const ErrorResponse& failure : response_list.errors) {
    const std::vector<int32_t>& ranks = failure.ranks;
    if (std::find(ranks.begin(), ranks.end(), rank_) != ranks.end()) {
      asked_.erase(failure.name);
    }
  }
  for (const Response& bucket : response_list.responses) {
    for (const std::string& name : bucket.names) asked_.erase(name);
  }
  shutdown_received_ = !response_list.shutdown.ok();
  if (shutdown_received_) {
    coordinator_ ? heartbeats_.StopSending()
                 : heartbeats_.StopListening(kCoordinatorRank);
  }
  if (!response_list.schedule.empty()) {
    BeginSchedule(std::move(response_list.schedule));
  }
  Timeline::Global().RecordResponses(members_.id);
  decisions_.push_back({std::move(response_list), Timeline::Global().Now(),
                        coordinator_ ? mailbox_.sent() : 0});
}

absl::StatusOr<std::optional<Negotiator::Decision>> Negotiator::Next() {
  if (decisions_.empty()) return std::nullopt;
  // Wait until the messages of this decision have left: otherwise this rank
  // could wait for data from a rank that was not told to send, because a
  // message moves only while its own transport makes progress.  Do not wait for
  // later messages: their receivers may already wait for this rank's data.
  TFRING_ASSIGN_OR_RETURN(const bool have_left,
                          mailbox_.HaveLeft(decisions_.front().messages));
  if (!have_left) return std::nullopt;
  Decision decision = std::move(decisions_.front());
  decisions_.pop_front();
  return decision;
}

bool Negotiator::over() const {
  if (!coordinator_) return shutdown_received_ && left_[rank_];
  for (const bool left : left_) {
    if (!left) return false;
  }
  return shutdown_received_;
}

absl::Status Negotiator::Flush() { return mailbox_.Flush(); }

// ---- Under a cached schedule ----

// Requests of this rank that the coordinator has not answered are sent again:
// it has forgotten them, or will not read them.
void Negotiator::BeginSchedule(std::vector<CollectiveRequest> items) {
  schedule_.emplace(std::move(items), rank_, members_.size(), neighbors_);
  ++schedules_;
  sent_ = {{0, mailbox_.sent()}};
  std::vector<Asked> again;
  for (auto& [name, asked] : asked_) again.push_back(std::move(asked));
  asked_.clear();
  // Sort by the order of the script, before the requests that have not been
  // sent yet: a rank follows a schedule in that order only.
  std::sort(again.begin(), again.end(),
            [](const Asked& a, const Asked& b) { return a.number > b.number; });
  for (Asked& asked : again) unsent_.push_front(std::move(asked.request));
  // A shutdown request is forgotten with the rest, and sent again after the
  // schedule.
  left_[rank_] = false;
  heartbeats_.GoOnSending();
  waiting_since_ = clock_.Now();
}

absl::StatusOr<bool> Negotiator::FollowSchedule(Clock::time_point now) {
  // A request out of turn ends the schedule for all.  It stays in place, with
  // all behind it, and is sent to the coordinator afterwards.
  while (!unsent_.empty() && !schedule_->has_left()) {
    if (schedule_->IsNext(unsent_.front())) {
      if (KeepsBack(unsent_.front())) break;
      schedule_->Submit(std::move(unsent_.front()));
      unsent_.pop_front();
    } else {
      schedule_->Leave();
    }
  }
  if (shutdown_requested_) schedule_->Leave();
  // Send before receiving: the neighbors may wait only for this rank.
  const bool said = SendProgress();
  TFRING_ASSIGN_OR_RETURN(const bool received, ReceiveProgress());
  if (coordinator_) TFRING_RETURN_IF_ERROR(DropRequests(now));
  // A rank that stayed would wait for one that has left.
  if (schedule_->SomeHaveLeft()) schedule_->Leave();
  CheckPatience(now);
  const bool passed_on = SendProgress();
  const bool taken = TakeScheduledItems();
  if (schedule_->over()) EndSchedule();
  return said || received || passed_on || taken;
}

void Negotiator::EndSchedule() {
  // Items that some rank had not submitted when it left are sent to the
  // coordinator: all ranks know the count up to which the items have run, and
  // so all send the same ones again.
  unsent_.insert(unsent_.begin(), schedule_->pending().begin(),
                 schedule_->pending().end());
  if (coordinator_) coordinator_->ScheduleHasEnded(schedule_->taken());
  schedule_.reset();
}

bool Negotiator::SendProgress() {
  const std::optional<ProgressUpdate> report = schedule_->TakeReport();
  if (report) {
    SendTo(neighbors_.peers, *report);
    if (neighbors_.parent >= 0) SendTo({neighbors_.parent}, *report);
  }
  const std::optional<ProgressUpdate> total = schedule_->TakeTotal();
  if (total) SendTo(neighbors_.children, *total);
  if (!report && !total) return false;
  // This rank has already reported the items that all ranks have requested; its
  // children still have to hear that all have.
  sent_.push_back({neighbors_.children.empty() ? schedule_->reported().count
                                               : schedule_->told().count,
                   mailbox_.sent()});
  return true;
}

// As the coordinator does, this keeps at most one decided list ahead of the one
// on the wire.  A larger request takes longer on the wire than the agreement on
// the next one, which runs at the same time.
bool Negotiator::KeepsBack(const CollectiveRequest& request) const {
  return !decisions_.empty() && Fusion::MayFuse(options_, request) &&
         SizeInBytes(request) <= kMostKeptBackBytes;
}

void Negotiator::SendTo(const std::vector<int>& ranks,
                        const ProgressUpdate& update) {
  if (ranks.empty()) return;
  const auto message = std::make_shared<const std::string>(Encode(update));
  for (const int rank : ranks) mailbox_.Send(rank, message);
}

absl::StatusOr<bool> Negotiator::ReceiveProgress() {
  bool received = false;
  for (const int neighbor : all_neighbors_) {
    // After a neighbor's last update come its requests, which are read after
    // the schedule.
    while (!schedule_->IsLast(neighbor)) {
      TFRING_ASSIGN_OR_RETURN(const std::optional<std::string> message,
                              mailbox_.Poll(neighbor));
      if (!message) break;
      received = true;
      // See AddRequests.
      if (coordinator_ && IsRequestList(*message)) continue;
      TFRING_ASSIGN_OR_RETURN(const ProgressUpdate update,
                              DecodeProgressUpdate(*message));
      TFRING_RETURN_IF_ERROR(schedule_->Receive(neighbor, update));
    }
  }
  return received;
}

absl::Status Negotiator::DropRequests(Clock::time_point now) {
  if (now - last_look_ <= kLookPeriod) return absl::OkStatus();
  last_look_ = now;
  for (int peer = 0; peer < members_.size(); ++peer) {
    if (std::find(all_neighbors_.begin(), all_neighbors_.end(), peer) !=
        all_neighbors_.end()) {
      continue;
    }
    while (peer != rank_) {
      TFRING_ASSIGN_OR_RETURN(const std::optional<std::string> message,
                              mailbox_.Poll(peer));
      if (!message) break;
    }
  }
  return absl::OkStatus();
}

bool Negotiator::TakeScheduledItems() {
  bool taken = false;
  while (true) {
    std::vector<CachedSchedule::Item> items = schedule_->TakeReady();
    if (items.empty()) return taken;
    taken = true;
    waiting_since_ = clock_.Now();
    // The updates that cover these items, and all before them, must have left
    // before this rank waits for the items' data: see Next.
    while (sent_.front().items < schedule_->taken()) sent_.pop_front();
    ResponseList response_list;
    Fusion fusion(options_);
    for (CachedSchedule::Item& item : items) {
      if (!fusion.Joins(item.request)) response_list.responses.emplace_back();
      Response& bucket = response_list.responses.back();
      bucket.names.push_back(std::move(item.request.name));
      AddSizes(std::move(item.sizes), bucket);
    }
    decisions_.push_back({std::move(response_list), Timeline::Global().Now(),
                          sent_.front().messages});
  }
}

// Under a cached schedule nobody reports a stall.  So a rank that has waited
// for a while leaves the schedule, and then the coordinator reports.  The
// coordinator counts from that moment, so the patience is short.  A hung
// process sends no heartbeats and never leaves the schedule.
void Negotiator::CheckPatience(Clock::time_point now) {
  const bool waits = !schedule_->pending().empty() ||
                     (!unsent_.empty() && !KeepsBack(unsent_.front()));
  if (!waits) waiting_since_ = now;
  const std::chrono::duration<double> waited = now - waiting_since_;
  if (waited.count() >= patience_seconds_) schedule_->Leave();
}

}  // namespace tfring
