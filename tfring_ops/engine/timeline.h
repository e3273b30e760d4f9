// Records the work of this process's engines: between Start and Stop as events
// for a picture (tfring/timeline/), and as sums for a monitor.
//
// Thread-safe.  A process has one timeline, so that the engines of all process
// sets, and the operations that wait for them, share one clock and one picture.
//
// Invariants:
// - While it neither records nor counts, it costs one atomic load for each
//   event that it would have recorded.
// - It keeps at most `kMaxEvents`; later events are only counted.
#ifndef TFRING_OPS_ENGINE_TIMELINE_H_
#define TFRING_OPS_ENGINE_TIMELINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tfring_ops/engine/statistics.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

class Timeline {
 public:
  enum class Phase : uint8_t {
    kRequest,    // From the submission of a request to its `done`.
    kNegotiate,  // From the submission of a request to the ranks' agreement.
    kBucket,     // The work of a bucket, on one of the engine's threads.
    kRing,       // A part of the bucket that travels as one message.
    kPack,       // Copies of small tensors into the fusion buffer.
    kUnpack,     // Copies of small tensors out of the fusion buffer.
    kWait,       // An operation waits until its request is done.
    kResponses,  // A moment: the coordinator's decision has arrived.
  };

  struct Event {
    Phase phase;
    CollectiveKind kind;
    int process_set;
    std::string name;  // of the request, or of the first of a bucket
    // The size of this rank's tensors, and of the neutral contributions in a
    // bucket.
    int64_t bytes;
    // Times of std::chrono::steady_clock.
    int64_t begin_ns, end_ns;
    int thread;  // a number for each that has recorded something, and track
    // The bytes of this rank's messages for a bucket.
    int64_t sent_bytes = 0;
  };

  // The line of a GPU in the picture.  A bucket begins there when the bucket
  // before it has ended, whenever it was launched.
  struct Track {
    Track();

    const int number;
    int64_t free_ns = 0;  // since then
  };

  struct Recording {
    std::vector<Event> events;
    int64_t dropped = 0;  // events that were too many
  };

  static constexpr size_t kMaxEvents = 500'000;

  // The timeline is never destroyed.
  static Timeline& Global();

  // Drops what was recorded, and records from now on.
  void Start(bool mark_responses);
  // Stops recording, and returns what was recorded since Start.
  Recording Stop();

  // Adds up all events until StopCounting has been called as often as this.
  void StartCounting();
  void StopCounting();
  Statistics::Totals totals();
  // Counts a report of a request that some ranks have not submitted.
  void CountStall();

  // Returns the time, or 0 while the timeline is off.
  int64_t Now() const;

  // A `begin_ns` of 0 means that the timeline was off then: nothing is
  // recorded.
  void RecordRequest(Phase phase, const CollectiveRequest& request,
                     int64_t begin_ns, int64_t end_ns);
  // Begins the wait of an operation; the result is for RecordWait.
  int64_t BeginWait();
  void RecordWait(const std::string& name, int process_set, int64_t begin_ns);
  // Does nothing unless Start has asked for it.
  void RecordResponses(int process_set);

 private:
  friend class TimelineSpan;

  void BeginBucket(int64_t now_ns);
  void Record(Event event);

  std::atomic<bool> looks_{false};  // if it records or counts
  std::atomic<bool> mark_responses_{false};
  std::mutex mutex_;
  // mutex_ guards the members below.
  bool records_ = false;
  int counters_ = 0;  // calls of StartCounting without one of StopCounting
  Recording recording_;
  Statistics statistics_;
};

// Records this thread's work until the end of the scope.
class TimelineSpan {
 public:
  // `request` is the first of its bucket, and `bytes` the size of the bucket.
  // With a track, the GPU does the work, whichever threads begin and end the
  // span.
  TimelineSpan(Timeline::Phase phase, const CollectiveRequest& request,
               int64_t bytes, Timeline::Track* track = nullptr);
  ~TimelineSpan();
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

  // Adds bytes that this rank has sent for the bucket.
  void AddSent(int64_t bytes) {
    if (event_) event_->sent_bytes += bytes;
  }

 private:
  Timeline::Track* const track_;
  std::optional<Timeline::Event> event_;  // if it records
};

const char* Name(Timeline::Phase phase);

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_TIMELINE_H_
