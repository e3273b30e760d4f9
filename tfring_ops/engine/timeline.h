// Records the work of this process's engines with its times: between Start and
// Stop, for a picture of it (tfring/timeline/); and adds it up from Count on,
// for a monitor.
//
// Thread-safe.  One of a process, as the engines of all process sets, and the
// operations that wait for them, share one clock and one picture.
//
// Invariants:
// - While it neither records nor counts, it costs one atomic load for each
//   thing that it would have recorded.
// - It keeps at most `kMaxEvents`; what comes later is counted.
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
    kRequest,    // from its submission to its done
    kNegotiate,  // from its submission to the ranks' negotiation
    kBucket,  // requests that run together, on a thread of an engine's; in it:
    kRing,    // what goes over the transport as one message; and in that:
    kPack,    // copies of small tensors into the fusion buffer,
    kUnpack,  // and back
    kWait,    // an operation that cannot go on before its request is done
    kResponses,  // a moment: the coordinator's word has come
  };

  struct Event {
    Phase phase;
    CollectiveKind kind;
    int process_set;
    std::string name;  // of the request, or of the first of a bucket
    // The size of this rank's tensors; of a bucket also of what stands in for
    // some.
    int64_t bytes;
    // Times of std::chrono::steady_clock.
    int64_t begin_ns, end_ns;
    int thread;  // a number for each that has recorded something, and track
    // The bytes of this rank's messages for a bucket.
    int64_t sent_bytes = 0;
  };

  // The line of a device in the picture, which begins with a bucket when it has
  // ended the one before, whenever it was launched.
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

  // Lives for ever.
  static Timeline& Global();

  // Begins anew.
  void Start(bool mark_responses);
  // Ends; what has been recorded, once.
  Recording Stop();

  // Adds up all events from here on, for good.
  void Count();
  Statistics::Totals totals();
  // A report of a request that some ranks lack.
  void CountStall();

  // 0 while it neither records nor counts.
  int64_t Now() const;

  // Each is recorded only if it began while `Now` was not 0: at a `begin_ns`
  // that is not.
  void RecordRequest(Phase phase, const CollectiveRequest& request,
                     int64_t begin_ns, int64_t end_ns);
  // An operation begins to wait; the result is for RecordWait.
  int64_t BeginWait();
  void RecordWait(const std::string& name, int process_set, int64_t begin_ns);
  // If they are asked for.
  void RecordResponses(int process_set);

 private:
  friend class TimelineSpan;

  void BeginBucket(int64_t now_ns);
  void Record(Event event);

  std::atomic<bool> looks_{false};  // if it records or counts
  std::atomic<bool> mark_responses_{false};
  std::mutex mutex_;
  // The next members are under the mutex.
  bool records_ = false;
  bool counts_ = false;
  Recording recording_;
  Statistics statistics_;
};

// Records the thread's work from here to the end of the scope.
class TimelineSpan {
 public:
  // `request` is the first of its bucket, `bytes` are those of all.  With a
  // track, it is the device that does it, whatever thread it is begun and ended
  // on.
  TimelineSpan(Timeline::Phase phase, const CollectiveRequest& request,
               int64_t bytes, Timeline::Track* track = nullptr);
  ~TimelineSpan();
  TimelineSpan(const TimelineSpan&) = delete;
  TimelineSpan& operator=(const TimelineSpan&) = delete;

  // This rank has sent as many bytes meanwhile.
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
