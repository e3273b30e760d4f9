// How messages are written into a channel's ring.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_WAY_CHOICE_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_WAY_CHOICE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tfring {

// Note [Two ways through a ring]
//
// The writer overwrites lines that the reader has read.  How long it takes to
// get such a line, and how long the reader takes to get it back, depends on the
// distance of their cores: 25 ns if they share a cache, 180 ns if not.
//
// - Near: plain stores, and the whole ring.  It is longer than a core's own
//   cache, so the reader's cache has lost a line before the line is
//   overwritten, and the common cache has it.
// - Far: streaming stores, which take no line from anybody, and a third of the
//   ring.  The reader has more of it in its cache the shorter it is.
//
// On two cores of an AMD EPYC that share a cache, 16 MiB took 1.5 ms near and
// 2.9 ms in a third of the ring; on cores that do not, 8 ms near and 1.9 ms
// far.  The cores of a virtual machine move while a program runs, and so may
// its threads.  So both ways are tried from time to time, each for some spans
// of the bytes that pass between the two ranks: first near, then far.  Both
// ranks count the bytes of both directions, and so try the same way at the same
// time; otherwise each could prefer its own way while the other rank uses the
// other way.  The first span of a way finds the other way's lines in the
// caches, and does not count.  Of the rest the fastest span counts, because a
// thread may lose its core.

enum class RingWay { kNear, kFar };

class WayChoice {
 public:
  static constexpr uint64_t kTrials = 4;    // spans of each way
  static constexpr uint64_t kPeriod = 128;  // spans from trial to trial
  // A longer pause between two messages does not count as time of the channel.
  static constexpr double kLongestPause = 250e-6;
  // The other way must be faster by this factor.
  static constexpr double kMargin = 1.1;

  explicit WayChoice(uint64_t span_bytes) : span_bytes_(span_bytes) {}

  // Begins a message at `now` seconds, when `sent` and `received` bytes have
  // passed in the two directions.  Returns the way that it takes.
  RingWay Begin(uint64_t sent, uint64_t received, double now) {
    if (now - last_ <= kLongestPause) taken_ += now - last_;
    last_ = now;
    if (const uint64_t span = (sent + received) / span_bytes_; span != span_) {
      // A span in which this rank sent less than a quarter of the bytes says
      // nothing about its own writes.
      const uint64_t own = sent - begin_;
      if (4 * own >= span_bytes_) EndSpan(taken_ / static_cast<double>(own));
      span_ = span;
      begin_ = sent;
      taken_ = 0;
      if (!is_trial()) Choose();
    }
    return is_trial() ? tried() : chosen_;
  }

  // Ends a message: it has been written.
  void End(double now) {
    taken_ += now - last_;
    last_ = now;
  }

 private:
  uint64_t turn() const { return span_ % kPeriod; }
  bool is_trial() const { return turn() < 2 * kTrials; }
  RingWay tried() const {
    return turn() < kTrials ? RingWay::kNear : RingWay::kFar;
  }

  // Ends a span in which a byte took `seconds`.
  void EndSpan(double seconds) {
    if (!is_trial() || turn() % kTrials == 0) return;
    double& least = tried() == RingWay::kNear ? least_near_ : least_far_;
    least = std::min(least, seconds);
  }

  void Choose() {
    if (kMargin * least_far_ < least_near_) chosen_ = RingWay::kFar;
    if (kMargin * least_near_ < least_far_) chosen_ = RingWay::kNear;
    least_near_ = least_far_ = kNone;
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  const uint64_t span_bytes_;
  RingWay chosen_ = RingWay::kNear;
  // The fewest seconds for a byte, of the spans of each way.
  double least_near_ = kNone;
  double least_far_ = kNone;
  // The current span, the bytes that had been sent before it, the seconds that
  // its messages took, and when the last message began or ended.
  uint64_t span_ = 0;
  uint64_t begin_ = 0;
  double taken_ = 0;
  double last_ = -kNone;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_WAY_CHOICE_H_
