#include "tfring_ops/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/algorithms/ring/broadcast.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/base/first_error.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/driver_lock.h"
#include "tfring_ops/engine/error_messages.h"
#include "tfring_ops/engine/execution/bucket_task.h"
#include "tfring_ops/engine/execution/lanes.h"
#include "tfring_ops/engine/hand_off.h"
#include "tfring_ops/engine/idle_watch.h"
#include "tfring_ops/engine/members.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/negotiation/negotiator.h"
#include "tfring_ops/engine/request_table.h"
#include "tfring_ops/engine/silence_watch.h"
#include "tfring_ops/engine/submissions.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/transport/polling.h"

namespace tfring {
namespace {

constexpr int kCoordinatorRank = Negotiator::kCoordinatorRank;
// How long after its last work an engine still looks for messages each
// IdleWatch::kShortestPeriod.
constexpr std::chrono::seconds kLongIdle{1};
// The longest time between two looks while workers are busy; a worker that has
// become free wakes the engine's thread.
constexpr std::chrono::microseconds kBusyPoll{250};

// Note [How an engine ends]
//
// kRunning: takes requests, and runs what the ranks agree on.  It ends when
//   Shutdown is called on this rank (kLeaving), or when the ranks agree on the
//   shutdown of another one (kClosed).
// kLeaving: as before, but the other ranks have been told.  It ends when all
//   agree on the shutdown (kClosed).
// kClosed: every request has failed, and later ones fail at once.  It ends when
//   no rank will send this one anything more (kOver).
// kOver: the driver does nothing more, and the engine's thread ends.
//
// A failure leads from every state to kOver: of a transport or a worker, of a
// rank that is lost, or of another engine, which calls Abort.  `failure_` has
// the first one.  Then whatever waits returns it, and the engine's thread
// closes the engine.
enum class State { kRunning, kLeaving, kClosed, kOver };

class RingEngine final : public Engine {
 public:
  // `channels` take the place of process_set.data, which has been moved away.
  RingEngine(const Options& options, ProcessSet process_set,
             std::vector<std::unique_ptr<Transport>> channels,
             const Kernels& kernels)
      : options_(options),
        process_set_(std::move(process_set)),
        members_(process_set_.id == 0
                     ? Members(size())
                     : Members(process_set_.id, process_set_.world_ranks)),
        negotiator_(options_, members_, *process_set_.control, clock_),
        silence_watch_(options_, members_, rank()),
        lanes_(options_, process_set_.make_device_lane,
               Polling(std::move(channels)), kernels, machine_clock_,
               [this] { submissions_.Wake(); }) {
    IdleWatch* const watch = process_set_.idle_watch;
    watch == nullptr ? StartThread()
                     : watch->Add(this, [this] { return LookWhileIdle(); });
  }

  ~RingEngine() override {
    Shutdown();
    if (process_set_.idle_watch != nullptr) {
      process_set_.idle_watch->Remove(this);
    }
  }

  void Submit(TensorEntry entry) override {
    entry.submitted_ns = Timeline::Global().Now();
    absl::Status status =
        CollectiveOf(entry.request.kind).Check(members_, entry.request);
    if (status.ok()) status = lanes_.CheckDevice(entry.request);
    const bool may_drive =
        process_set_.has_thread && is_one_node_ && IsSmall(entry.request);
    if (status.ok()) status = submissions_.Add(entry);
    if (!status.ok()) return entry.done(status);
    StartThread();
    if (!may_drive || !DriveBriefly()) submissions_.Wake();
  }

  void Shutdown() override {
    submissions_.RequestShutdown();
    StartThread();
    std::lock_guard<std::mutex> lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  Found Look() override {
    driver_lock_.Lock();
    if (!is_concluded_) LookOnce();
    driver_lock_.Unlock();
    return is_concluded_ ? Found::kEnd
           : progressed_ ? Found::kSomething
                         : Found::kNothing;
  }

  void Abort(const absl::Status& reason) override {
    failure_.Update(reason);
    submissions_.Wake();
    StartThread();
  }

  absl::Status ended() override { return submissions_.closed(); }

  int rank() const override { return process_set_.control->rank(); }
  int size() const override { return process_set_.control->size(); }
  const Options& options() const override { return options_; }

 private:
  // Makes every wait on a channel progress the negotiation, so that the next
  // response list is agreed on while buckets are on the wire.
  std::vector<std::unique_ptr<Transport>> Polling(
      std::vector<std::unique_ptr<Transport>> channels) {
    for (std::unique_ptr<Transport>& channel : channels) {
      channel = MakePollingTransport(
          std::move(channel),
          [this] {
            // A worker that waits leaves the negotiation to the driver, and
            // stops if the engine is aborted.
            return driver_lock_.IsMine() ? Poll() : failure_.Get();
          },
          machine_clock_);
    }
    return channels;
  }

  int world_rank() const { return members_.world_ranks[rank()]; }

  // Goes on to `state`, unless the engine is there already or further.
  void Enter(State state) {
    if (state <= state_) return;
    if (state_ == State::kRunning) ending_since_ = clock_.Now();
    state_ = state;
  }

  // Starts the engine's thread, unless it runs already or there is none.
  void StartThread() {
    if (started_ || !process_set_.has_thread) return;
    std::lock_guard<std::mutex> lock(start_mutex_);
    if (started_) return;
    thread_ = std::thread(&RingEngine::Run, this);
    started_ = true;
  }

  // Called by the IdleWatch, which replaces the thread until the thread starts.
  std::optional<std::chrono::microseconds> LookWhileIdle() {
    std::unique_lock<std::mutex> lock(start_mutex_);
    if (started_) return std::nullopt;
    const absl::StatusOr<bool> progressed =
        negotiator_.Progress({}, /*shutdown=*/false);
    failure_.Update(progressed.status());
    failure_.Update(process_set_.control->Progress());
    if (failure_.Get().ok() && !*progressed) {
      return IdleWatch::Period(negotiator_.heartbeat_look());
    }
    lock.unlock();
    StartThread();
    return std::nullopt;
  }

  // See Note [The thread that submits a small request runs it].  Returns true
  // if nothing is left for the engine's thread.
  bool DriveBriefly() {
    if (!driver_lock_.TryLock()) return false;
    const bool is_done =
        state_ != State::kOver && failure_.Get().ok() && RunSmallRequests();
    driver_lock_.Unlock();
    return is_done;
  }

  bool RunSmallRequests() {
    if (!requests_.empty() || !lanes_.idle()) return false;
    const auto end = std::chrono::steady_clock::now() + kDrivePoll;
    for (Backoff backoff;; backoff.Pause()) {
      if (!Poll().ok()) return false;
      if (!requests_.All(IsSmall)) return false;
      // The engine's thread gets this error again, and ends everything.
      failure_.Update(RunNext());
      if (!failure_.Get().ok() || state_ == State::kOver) return false;
      if (requests_.empty()) return !negotiator_.HasNext();
      if (std::chrono::steady_clock::now() >= end) return false;
    }
  }

  static bool IsSmall(const CollectiveRequest& request) {
    return !OnDevice(request) && request.kind != CollectiveKind::kJoin &&
           SizeInBytes(request) <= kDriveBytes;
  }

  void Run() {
    enum class Next { kStep, kAwaitLanes, kAwaitWork, kPause };
    Next next = Next::kStep;
    Backoff backoff;
    while (true) {
      driver_lock_.Lock();
      if (next == Next::kAwaitWork) {
        // Look for a lost rank in each of these rare steps, because the GPU may
        // be waiting for it.
        failure_.Update(process_set_.control->Progress());
      }
      LookOnce();
      if (is_concluded_) break;
      next = progressed_                                   ? Next::kStep
             : !lanes_.idle()                              ? Next::kAwaitLanes
             : requests_.empty() && !negotiator_.HasNext() ? Next::kAwaitWork
                                                           : Next::kPause;
      const bool on_device = lanes_.launched() > 0;
      const std::chrono::microseconds idle_poll = IdlePoll();
      driver_lock_.Unlock();
      if (next == Next::kAwaitWork) {
        submissions_.WaitFor(idle_poll, clock_);
      } else if (next == Next::kAwaitLanes) {
        WaitForLanes(on_device, backoff);
      } else if (next == Next::kPause) {
        backoff.Pause();
      }
      if (next == Next::kStep || next == Next::kAwaitWork) backoff = Backoff();
    }
    driver_lock_.Unlock();
  }

  // Looks once at everything that may have happened, or ends the engine.
  void LookOnce() {
    progressed_ = false;
    absl::Status status;
    if (state_ != State::kOver) {
      status = Poll();
      if (status.ok()) status = RunNext();
    }
    if (status.ok() && state_ != State::kOver) return;
    Enter(State::kOver);
    Conclude(status);
    is_concluded_ = true;
  }

  void Conclude(absl::Status status) {
    if (status.ok()) status = negotiator_.Flush();
    if (!status.ok()) {
      failure_.Update(status);  // ends the waits of workers
      // Peers may be waiting for this rank, and buffers still be in flight.
      process_set_.control->Abort(status);
      lanes_.Abort(status);
      if (process_set_.control->HasAbandoned() || lanes_.HasAbandoned()) {
        KeepMemory();
      }
      End(status);
      if (process_set_.on_lost) process_set_.on_lost(status);
    }
  }

  std::chrono::microseconds IdlePoll() const {
    if (state_ != State::kRunning || clock_.Now() - last_work_ < kLongIdle) {
      return IdleWatch::kShortestPeriod;
    }
    return IdleWatch::Period(negotiator_.heartbeat_look());
  }

  void KeepMemory() {
    lanes_.KeepMemory();
    negotiator_.KeepMemory();
    for (const auto& task : tasks_) task->KeepMemory();
  }

  // Applies the next decision, if there is one.
  absl::Status RunNext() {
    // Until a lane has room, requests that become ready may share a bucket.
    if (lanes_.HasRoom()) {
      TFRING_ASSIGN_OR_RETURN(std::optional<Negotiator::Decision> decision,
                              negotiator_.Next());
      if (decision) TFRING_RETURN_IF_ERROR(Apply(*std::move(decision)));
    }
    if (state_ == State::kClosed && negotiator_.over()) Enter(State::kOver);
    return absl::OkStatus();
  }

  // Does the work that cannot wait while a bucket is on the wire.  An error
  // here ends the engine, even if a caller that waits for a lane could do
  // without it.
  absl::Status Poll() {
    failure_.Update(PollAll());
    return failure_.Get();
  }

  absl::Status PollAll() {
    // Lanes come first: work that a device has completed counts as complete,
    // whatever has failed since.
    TFRING_ASSIGN_OR_RETURN(const bool finished, lanes_.Poll());
    TFRING_RETURN_IF_ERROR(failure_.Get());
    const Clock::time_point now = clock_.Now();
    std::vector<CollectiveRequest> added =
        requests_.Add(submissions_.Take(), now);
    if (!requests_.empty()) last_work_ = now;
    const bool leaves = submissions_.ShutdownRequested();
    if (leaves) Enter(State::kLeaving);
    TFRING_ASSIGN_OR_RETURN(const bool progressed,
                            negotiator_.Progress(std::move(added), leaves));
    progressed_ = progressed_ || finished || progressed;
    return silence_watch_.Check(
        negotiator_.silent(), [this] { return OldestWait(); }, now);
  }

  absl::Status Apply(Negotiator::Decision decision) {
    ResponseList& response_list = decision.response_list;
    progressed_ = true;
    const auto concerns_me = [this](const std::vector<int32_t>& ranks) {
      return std::find(ranks.begin(), ranks.end(), rank()) != ranks.end();
    };
    for (const StallReport& report : response_list.reports) {
      if (!concerns_me(report.ranks)) continue;
      Timeline::Global().CountStall();
      LogWarning(world_rank(), report.text);
    }
    for (const ErrorResponse& failure : response_list.errors) {
      if (!concerns_me(failure.ranks)) continue;
      if (std::optional<TensorEntry> entry = requests_.Take(failure.name)) {
        Finish(*entry, failure.status, submissions_);
      }
    }
    for (Response& bucket : response_list.responses) {
      TFRING_RETURN_IF_ERROR(Execute(std::move(bucket), decision.agreed_ns));
    }
    if (!response_list.shutdown.ok()) {
      TFRING_RETURN_IF_ERROR(WaitUntil([this] { return lanes_.idle(); }));
      End(response_list.shutdown);
    }
    return absl::OkStatus();
  }

  // An error leaves the entries unfinished: the wire may still use their
  // memory.
  absl::Status Execute(Response bucket, int64_t agreed_ns) {
    while (!tasks_.empty() && tasks_.front()->finished()) tasks_.pop_front();
    const auto& task = tasks_.emplace_back(std::make_shared<BucketTask>(
        std::move(bucket), members_, submissions_, clock_.Now()));
    const Response& agreed = task->bucket();
    for (size_t i = 0; i < agreed.names.size(); ++i) {
      const std::string& name = agreed.names[i];
      if (std::optional<TensorEntry> entry = requests_.Take(name)) {
        Timeline::Global().RecordRequest(Timeline::Phase::kNegotiate,
                                         entry->request, entry->submitted_ns,
                                         agreed_ns);
        task->Add(*std::move(entry));
      } else if (!agreed.requests.empty()) {
        task->AddNeutralContribution(agreed.requests[i]);
      } else {
        return absl::InternalError(
            absl::StrCat("rank ", world_rank(), " was told to run '", name,
                         "', which it has not submitted"));
      }
    }
    return lanes_.RunsOnWorker(task->first()) ? RunOnWorker(task)
                                              : RunInline(task);
  }

  // See Note [Several buckets in flight] in lanes.h.
  absl::Status RunOnWorker(const std::shared_ptr<BucketTask>& task) {
    TFRING_RETURN_IF_ERROR(WaitUntil([this] { return lanes_.HasRoom(); }));
    TFRING_ASSIGN_OR_RETURN(ExecutionLane* const lane, lanes_.Next());
    if (task->bytes() < kHandOffBytes && lane->worker->left() == 0) {
      return task->Run(*lane);
    }
    lane->worker->Add([this, task, lane] {
      const absl::Status status = task->Run(*lane);
      // The engine's thread then finishes the task.
      if (!status.ok()) Abort(status);
    });
    return absl::OkStatus();
  }

  // Runs the task on this thread, after the buckets that its device has been
  // given: see Note [Launched buckets] in lanes.h.
  absl::Status RunInline(const std::shared_ptr<BucketTask>& task) {
    const bool follows = lanes_.FollowsOthers(*task);
    const auto is_free = [this, follows] {
      return follows ? lanes_.HasRoom() : lanes_.idle();
    };
    TFRING_RETURN_IF_ERROR(WaitUntil(is_free));
    const absl::StatusOr<ExecutionLane*> lane = lanes_.Of(task->first());
    if (!lane.ok()) {
      task->Finish(lane.status());
      // After an error that all ranks have, the engine continues.
      return lanes_.Progress();
    }
    TFRING_RETURN_IF_ERROR(task->Run(**lane));
    return follows ? absl::OkStatus() : WaitUntil(is_free);
  }

  // Returns when `condition` is true, and negotiates meanwhile.
  template <typename Condition>
  absl::Status WaitUntil(const Condition& condition) {
    for (Backoff backoff; !condition();) {
      TFRING_RETURN_IF_ERROR(Poll());
      WaitForLanes(lanes_.launched() > 0, backoff);
    }
    return failure_.Get();  // A worker that has become idle may have failed.
  }

  // A worker wakes this thread, a device does not.
  void WaitForLanes(bool on_device, Backoff& backoff) {
    on_device ? backoff.Pause() : submissions_.WaitFor(kBusyPoll, clock_);
  }

  // Fails all requests, now and later, with `reason`, or with that of an
  // earlier call.
  void End(const absl::Status& reason) {
    Enter(State::kClosed);
    submissions_.Close(reason);
    const absl::Status why = submissions_.closed();
    requests_.Add(submissions_.Take(), clock_.Now());
    for (const auto& task : tasks_) task->Finish(why);
    for (TensorEntry& entry : requests_.TakeAll()) {
      Finish(entry, why, submissions_);
    }
  }

  // Returns this rank's longest wait: for a bucket on the wire, or else for the
  // oldest request that is not agreed on.
  std::optional<SilenceWatch::Wait> OldestWait() const {
    for (const auto& task : tasks_) {
      if (!task->finished()) return {{task->label(), task->since()}};
    }
    if (const RequestTable::Waiting* const oldest = requests_.Oldest()) {
      return {{LabelOf(members_, oldest->entry.request), oldest->since}};
    }
    if (state_ == State::kRunning) return std::nullopt;
    return {
        {absl::StrCat("tfring.shutdown()", members_.Suffix()), ending_since_}};
  }

  const Options options_;
  ProcessSet process_set_;
  const Clock& clock_ = *process_set_.clock;
  // The clock for waits of milliseconds: of this machine, or simulated.
  const Clock& machine_clock_ =
      process_set_.has_thread ? SteadyClock() : clock_;
  const Members members_;
  // A thread that submits does not wait for a network.
  const bool is_one_node_ = Layout::Of(*process_set_.control).nodes == 1;
  Submissions submissions_;
  std::mutex join_mutex_;
  FirstError failure_;
  std::mutex start_mutex_;
  std::atomic<bool> started_{false};  // thread_; set under start_mutex_

  // The driver alone uses what follows; before the start, IdleWatch does.
  DriverLock driver_lock_;
  Negotiator negotiator_;
  SilenceWatch silence_watch_;
  Lanes lanes_;
  std::deque<std::shared_ptr<BucketTask>> tasks_;  // some are finished
  RequestTable requests_;
  State state_ = State::kRunning;   // see Note [How an engine ends]
  Clock::time_point ending_since_;  // when it left kRunning
  Clock::time_point last_work_ = clock_.Now();
  bool progressed_ = false;    // in the last look
  bool is_concluded_ = false;  // after the last look of all

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Start(const Options& options,
                                                      ProcessSet process_set,
                                                      const Kernels& kernels) {
  Options of_rank_0 = options;
  Workspace scratch(kernels);
  const RingContext context{*process_set.control, kernels,
                            static_cast<int64_t>(sizeof(of_rank_0)), scratch};
  absl::Status status =
      RingBroadcast(context, &of_rank_0, sizeof(of_rank_0), kCoordinatorRank);
  std::vector<std::unique_ptr<Transport>> channels;
  channels.push_back(std::move(process_set.data));
  if (status.ok()) status = AddChannels(of_rank_0, process_set, channels);
  if (!status.ok()) {
    // Peers may be waiting for this rank.
    for (const auto& channel : channels) channel->Abort(status);
    process_set.control->Abort(status);
    return status;
  }
  return std::make_unique<RingEngine>(of_rank_0, std::move(process_set),
                                      std::move(channels), kernels);
}

}  // namespace tfring
