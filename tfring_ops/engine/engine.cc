#include "tfring_ops/engine/engine.h"

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tfring_ops/base/backoff.h"
#include "tfring_ops/base/log.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/engine/agreement.h"
#include "tfring_ops/engine/lanes.h"
#include "tfring_ops/engine/messages.h"
#include "tfring_ops/engine/stand_in.h"
#include "tfring_ops/engine/submissions.h"
#include "tfring_ops/engine/timeline.h"
#include "tfring_ops/engine/wording.h"
#include "tfring_ops/ring/broadcast.h"
#include "tfring_ops/transport/attended.h"

namespace tfring {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCoordinatorRank = Agreement::kCoordinatorRank;
// How long an idle engine sleeps between looks at its mailbox.  Nobody waits
// for an idle rank but to hear a report, a farewell or that it leaves a plan.
constexpr std::chrono::milliseconds kIdlePoll{20};
constexpr std::chrono::milliseconds kStallCheckPeriod{50};
// How much longer than the stall time-out a rank waits for the coordinator's
// word on it.
constexpr std::chrono::seconds kCoordinatorGrace{10};

class RingEngine final : public Engine {
 public:
  RingEngine(const Options& options, ProcessSet process_set,
             const Kernels& kernels)
      : options_(options),
        process_set_(Attended(std::move(process_set))),
        members_(process_set_.id == 0
                     ? Members(size())
                     : Members(process_set_.id, process_set_.world_ranks)),
        agreement_(options_, members_, *process_set_.control),
        lanes_(options_, process_set_, kernels) {
    thread_ = std::thread([this] { Run(); });
  }

  ~RingEngine() override { Shutdown(); }

  void Submit(TensorEntry entry) override {
    entry.submitted_ns = Timeline::Global().Now();
    absl::Status status = CheckRoot(entry.request);
    if (status.ok()) status = lanes_.CheckDevice(entry.request);
    if (status.ok()) status = submissions_.Add(entry);
    if (!status.ok()) entry.done(status);
  }

  void Shutdown() override {
    submissions_.RequestShutdown();
    std::lock_guard<std::mutex> lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  void Abort(const absl::Status& reason) override {
    std::lock_guard<std::mutex> lock(abort_mutex_);
    if (abort_reason_.ok()) abort_reason_ = reason;
  }

  absl::Status ended() override { return submissions_.closed(); }

  int rank() const override { return process_set_.control->rank(); }
  int size() const override { return process_set_.control->size(); }
  const Options& options() const override { return options_; }

 private:
  struct InFlight {
    TensorEntry entry;
    Clock::time_point since;
  };

  // The next verdict is agreed on while what the last one said is on the wire.
  ProcessSet Attended(ProcessSet process_set) {
    process_set.data = MakeAttendedTransport(std::move(process_set.data),
                                             [this] { return Attend(); });
    return process_set;
  }

  absl::Status CheckRoot(const CollectiveRequest& request) const {
    if (request.kind != CollectiveKind::kBroadcast ||
        members_.RankOf(request.root_rank) >= 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "broadcast of '", request.name, "'", members_.Suffix(),
        ": root_rank is ", request.root_rank, ", which is not one of its ",
        "ranks ", absl::StrJoin(members_.world_ranks, ", "),
        ". Pass a rank as tfring.rank() gives it."));
  }

  int world_rank() const { return members_.world_ranks[rank()]; }

  void Run() {
    Backoff backoff;
    absl::Status status;
    while (status.ok() && !finished_) {
      progressed_ = false;
      status = Step();
      if (progressed_) {
        backoff = Backoff();
      } else if (in_flight_.empty()) {
        submissions_.WaitFor(kIdlePoll);
        backoff = Backoff();
      } else {
        backoff.Pause();
      }
    }
    if (status.ok()) status = agreement_.Flush();
    if (!status.ok()) {
      // Peers may be waiting for this rank, and buffers still be in flight.
      lanes_.Abort(status);
      process_set_.control->Abort(status);
      End(status);
      if (process_set_.on_lost) process_set_.on_lost(status);
    }
  }

  absl::Status AbortReason() {
    std::lock_guard<std::mutex> lock(abort_mutex_);
    return abort_reason_;
  }

  // One look at everything that may have happened.
  absl::Status Step() {
    TFRING_RETURN_IF_ERROR(Attend());
    TFRING_ASSIGN_OR_RETURN(const std::optional<Agreement::Decision> decision,
                            agreement_.Next());
    if (decision) TFRING_RETURN_IF_ERROR(Apply(*decision));
    finished_ = !ended_.ok() && agreement_.over();
    return ended_.ok() ? CheckCoordinator() : absl::OkStatus();
  }

  // What is to be done also while a bucket is on the wire.  An error is the
  // end, also where the wait that met it was for something that may fail, like
  // the making of a lane.
  absl::Status Attend() {
    if (attended_.ok()) attended_ = LookAfterAgreement();
    return attended_;
  }

  absl::Status LookAfterAgreement() {
    TFRING_RETURN_IF_ERROR(AbortReason());
    std::vector<CollectiveRequest> requests;
    const Clock::time_point now = Clock::now();
    for (TensorEntry& entry : submissions_.Take()) {
      const std::string name = entry.request.name;
      requests.push_back(entry.request);
      in_flight_.emplace(name, InFlight{std::move(entry), now});
    }
    TFRING_ASSIGN_OR_RETURN(
        const bool progressed,
        agreement_.Exchange(std::move(requests),
                            submissions_.ShutdownRequested()));
    progressed_ = progressed_ || progressed;
    return absl::OkStatus();
  }

  absl::Status Apply(const Agreement::Decision& decision) {
    const Verdict& verdict = decision.verdict;
    progressed_ = true;
    const auto concerns_me = [this](const std::vector<int32_t>& ranks) {
      for (const int32_t other : ranks) {
        if (other == rank()) return true;
      }
      return false;
    };
    for (const Verdict::Report& report : verdict.reports) {
      if (concerns_me(report.ranks)) LogWarning(world_rank(), report.text);
    }
    for (const Verdict::Failure& failure : verdict.failures) {
      if (concerns_me(failure.ranks)) Finish(failure.name, failure.status);
    }
    for (const Verdict::Bucket& bucket : verdict.buckets) {
      TFRING_RETURN_IF_ERROR(Execute(bucket, decision.agreed_ns));
    }
    if (!verdict.farewell.ok()) End(verdict.farewell);
    return absl::OkStatus();
  }

  // An error leaves the entries in flight: their memory may be, too, and so may
  // that of stand_ins_.
  absl::Status Execute(const Verdict::Bucket& bucket, int64_t agreed_ns) {
    std::vector<TensorEntry*> entries;
    stand_ins_.clear();
    int64_t bytes = 0;
    for (size_t i = 0; i < bucket.names.size(); ++i) {
      const std::string& name = bucket.names[i];
      if (auto it = in_flight_.find(name); it != in_flight_.end()) {
        const TensorEntry& entry = it->second.entry;
        entries.push_back(&it->second.entry);
        bytes += SizeInBytes(entry.request);
        Timeline::Global().RecordRequest(Timeline::Phase::kAgree, entry.request,
                                         entry.submitted_ns, agreed_ns);
      } else if (!bucket.requests.empty()) {
        entries.push_back(&stand_ins_.emplace_back(bucket.requests[i]).entry());
      } else {
        return absl::InternalError(
            absl::StrCat("rank ", world_rank(), " was told to run '", name,
                         "', which it has not submitted"));
      }
    }
    const absl::StatusOr<Lanes::Open*> lane = lanes_.Of(entries[0]->request);
    if (!lane.ok()) {
      for (const std::string& name : bucket.names) Finish(name, lane.status());
      return absl::OkStatus();
    }
    for (StandIn& stand_in : stand_ins_) {
      TFRING_RETURN_IF_ERROR(stand_in.Allocate(*(*lane)->lane.kernels));
    }
    const int contributors =
        bucket.requests.empty() ? size() : bucket.contributors;
    if (contributors < size()) {
      for (TensorEntry* entry : entries) {
        AverageOver(contributors, entry->request);
      }
    }
    TimelineSpan span(Timeline::Phase::kBucket, entries[0]->request, bytes);
    switch (entries[0]->request.kind) {
      case CollectiveKind::kBarrier:
        break;  // That all ranks have agreed on it is all there is to it.
      case CollectiveKind::kJoin:
        // Before `done`, after which this rank goes on.
        submissions_.RestartNames();
        entries[0]->on_joined(bucket.last_joined);
        break;
      default:
        TFRING_RETURN_IF_ERROR(
            RunBucket(**lane, bucket, entries, contributors, members_));
    }
    span.End();
    stand_ins_.clear();
    for (const std::string& name : bucket.names) Finish(name, absl::OkStatus());
    return absl::OkStatus();
  }

  void Finish(const std::string& name, const absl::Status& status) {
    auto node = in_flight_.extract(name);
    if (node.empty()) return;
    const TensorEntry& entry = node.mapped().entry;
    Timeline::Global().RecordRequest(Timeline::Phase::kRequest, entry.request,
                                     entry.submitted_ns,
                                     Timeline::Global().Now());
    // Before `done`, whose caller may at once use the name again.
    submissions_.Remove(name);
    entry.done(status);
  }

  // From here on everything fails with `reason`.
  void End(const absl::Status& reason) {
    if (ended_.ok()) ended_ = reason;
    submissions_.Close(ended_);
    const Clock::time_point now = Clock::now();
    for (TensorEntry& entry : submissions_.Take()) {
      const std::string name = entry.request.name;
      in_flight_.emplace(name, InFlight{std::move(entry), now});
    }
    while (!in_flight_.empty()) {
      Finish(std::string(in_flight_.begin()->first), ended_);
    }
  }

  // A stall that the coordinator does not report is its own.
  absl::Status CheckCoordinator() {
    const Clock::time_point now = Clock::now();
    if (rank() == kCoordinatorRank || options_.stall_shutdown_seconds == 0 ||
        now - last_stall_check_ < kStallCheckPeriod) {
      return absl::OkStatus();
    }
    last_stall_check_ = now;
    const auto limit =
        std::chrono::duration<double>(options_.stall_shutdown_seconds) +
        kCoordinatorGrace;
    for (const auto& [name, waiting] : in_flight_) {
      // A join may well take as long as the others' data lasts.
      if (waiting.entry.request.kind == CollectiveKind::kJoin) continue;
      if (now - waiting.since < limit) continue;
      return absl::DeadlineExceededError(
          DescribeSilence(
              members_, waiting.entry.request,
              std::chrono::duration<double>(now - waiting.since).count(),
              rank(), {kCoordinatorRank}) +
          kEndOfJob);
    }
    return absl::OkStatus();
  }

  const Options options_;
  ProcessSet process_set_;
  const Members members_;
  Submissions submissions_;
  std::mutex join_mutex_;
  std::mutex abort_mutex_;
  absl::Status abort_reason_;

  // The rest belongs to the engine's thread.
  Agreement agreement_;
  Lanes lanes_;
  std::deque<StandIn> stand_ins_;  // of this bucket, where this rank has joined
  std::unordered_map<std::string, InFlight> in_flight_;
  Clock::time_point last_stall_check_ = Clock::now();
  absl::Status attended_;
  absl::Status ended_;
  bool progressed_ = false;
  bool finished_ = false;

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
  if (absl::Status status = RingBroadcast(context, &of_rank_0,
                                          sizeof(of_rank_0), kCoordinatorRank);
      !status.ok()) {
    // Peers may be waiting for this rank.
    process_set.data->Abort(status);
    process_set.control->Abort(status);
    return status;
  }
  return std::make_unique<RingEngine>(of_rank_0, std::move(process_set),
                                      kernels);
}

}  // namespace tfring
