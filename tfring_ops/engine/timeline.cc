#include "tfring_ops/engine/timeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tfring {
namespace {

int NextNumber() {
  static std::atomic<int> numbers{0};
  return numbers++;
}

int ThisThread() {
  static thread_local const int number = NextNumber();
  return number;
}

int64_t Clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Timeline::Track::Track() : number(NextNumber()) {}

Timeline& Timeline::Global() {
  static Timeline& timeline = *new Timeline();
  return timeline;
}

void Timeline::Start(bool mark_responses) {
  std::lock_guard<std::mutex> lock(mutex_);
  recording_ = Recording();
  mark_responses_ = mark_responses;
  records_ = true;
  looks_ = true;
}

Timeline::Recording Timeline::Stop() {
  std::lock_guard<std::mutex> lock(mutex_);
  records_ = false;
  mark_responses_ = false;
  looks_ = counters_ > 0;
  return std::exchange(recording_, Recording());
}

void Timeline::StartCounting() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++counters_;
  looks_ = true;
}

void Timeline::StopCounting() {
  std::lock_guard<std::mutex> lock(mutex_);
  --counters_;
  looks_ = records_ || counters_ > 0;
  // A bucket that runs now may end while nothing is counted.
  if (counters_ == 0) statistics_.Forget(Clock());
}

Statistics::Totals Timeline::totals() {
  std::lock_guard<std::mutex> lock(mutex_);
  return statistics_.totals(Clock());
}

void Timeline::CountStall() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (counters_ > 0) statistics_.AddStall();
}

int64_t Timeline::Now() const {
  return looks_.load(std::memory_order_relaxed) ? Clock() : 0;
}

void Timeline::RecordRequest(Phase phase, const CollectiveRequest& request,
                             int64_t begin_ns, int64_t end_ns) {
  if (begin_ns == 0 || end_ns == 0) return;
  Record({phase, request.kind, request.process_set_id, request.name,
          SizeInBytes(request), begin_ns, end_ns, ThisThread()});
}

int64_t Timeline::BeginWait() {
  const int64_t now = Now();
  if (now == 0) return 0;
  std::lock_guard<std::mutex> lock(mutex_);
  if (counters_ > 0) statistics_.BeginWait(now);
  return now;
}

void Timeline::BeginBucket(int64_t now_ns) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (counters_ > 0) statistics_.BeginBucket(now_ns);
}

void Timeline::RecordWait(const std::string& name, int process_set,
                          int64_t begin_ns) {
  if (begin_ns == 0) return;
  Record({Phase::kWait, CollectiveKind::kAllreduce, process_set, name, 0,
          begin_ns, Now(), ThisThread()});
}

void Timeline::RecordResponses(int process_set) {
  const int64_t now = Now();
  if (now == 0 || !mark_responses_) return;
  Record({Phase::kResponses, CollectiveKind::kBarrier, process_set, "", 0, now,
          now, ThisThread()});
}

void Timeline::Record(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  // The recording may have been stopped and started again since.
  if (event.end_ns == 0) return;
  if (counters_ > 0) {
    if (event.phase == Phase::kBucket) {
      statistics_.EndBucket(event.end_ns, event.bytes);
    } else if (event.phase == Phase::kWait) {
      statistics_.EndWait(event.end_ns);
    } else if (event.phase == Phase::kNegotiate) {
      statistics_.AddNegotiation(event.name, event.end_ns - event.begin_ns);
    }
  }
  if (!records_) return;
  if (recording_.events.size() < kMaxEvents) {
    recording_.events.push_back(std::move(event));
  } else {
    ++recording_.dropped;
  }
}

TimelineSpan::TimelineSpan(Timeline::Phase phase,
                           const CollectiveRequest& request, int64_t bytes,
                           Timeline::Track* track)
    : track_(track) {
  const int64_t now = Timeline::Global().Now();
  if (now == 0) return;
  event_ = Timeline::Event{phase,
                           request.kind,
                           request.process_set_id,
                           request.name,
                           bytes,
                           now,
                           0,
                           track == nullptr ? ThisThread() : track->number};
  if (phase == Timeline::Phase::kBucket) {
    Timeline::Global().BeginBucket(now);
  }
}

TimelineSpan::~TimelineSpan() {
  if (!event_) return;
  event_->end_ns = Timeline::Global().Now();
  if (track_ != nullptr) {
    event_->begin_ns = std::max(event_->begin_ns, track_->free_ns);
    track_->free_ns = event_->end_ns;
  }
  Timeline::Global().Record(*std::move(event_));
}

const char* Name(Timeline::Phase phase) {
  switch (phase) {
    case Timeline::Phase::kRequest:
      return "request";
    case Timeline::Phase::kNegotiate:
      return "negotiate";
    case Timeline::Phase::kBucket:
      return "bucket";
    case Timeline::Phase::kPack:
      return "pack";
    case Timeline::Phase::kRing:
      return "ring";
    case Timeline::Phase::kUnpack:
      return "unpack";
    case Timeline::Phase::kWait:
      return "wait";
    case Timeline::Phase::kResponses:
      return "response";
  }
  return "?";
}

}  // namespace tfring
