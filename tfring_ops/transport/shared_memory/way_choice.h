// How messages are written into a channel's ring.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_WAY_CHOICE_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_WAY_CHOICE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tfring {

// Note [Two ways through a ring]
//
// The writer writes lines anew that the reader has read.  How long it takes to
// get such a line, and how long the reader takes to get it back, depends on
// the distance of their cores: 25 ns if they share a cache, 180 ns if not.
//
// - Near: plain stores, and the whole ring.  It is longer than a core's own
//   cache, so the reader's has lost a line before it is written anew, and the
//   common cache has it.
// - Far: streaming stores, which take no line from anybody, and a third of the
//   ring.  The reader has more of it in its cache the shorter it is.
//
// On two cores of an AMD EPYC, 16 MiB took 1.5 ms near and 2.9 in a third of
// the ring where the cores share a cache; where not, 8 ms near and 1.9 far.
// The cores of a virtual machine move while a program runs, and so may its
// threads.  So both ways are tried now and then, each for some spans of bytes:
// first near, then far, so that ranks that send each other as much try the same
// way at a time.  The first span of a way finds the other's lines in the
// caches, and does not count; of the rest the fastest does, as a thread may
// lose its core.

enum class Way { kNear, kFar };

class WayChoice {
 public:
  static constexpr int kTrials = 4;    // spans of each way
  static constexpr int kPeriod = 128;  // spans from trial to trial
  // After a longer pause between two messages, a span says nothing.
  static constexpr double kLongestPause = 250e-6;
  // The other way has to be so much faster.
  static constexpr double kMargin = 1.1;

  explicit WayChoice(uint64_t span_bytes) : span_bytes_(span_bytes) {}

  // A message begins, after `position` bytes and `now` seconds.  Returns the
  // way that it takes.
  Way Begin(uint64_t position, double now) {
    if (now - last_end_ > kLongestPause) is_continuous_ = false;
    if (position - begin_ >= span_bytes_) EndSpan(position, now);
    return is_trial() ? tried() : chosen_;
  }

  // It has been written.
  void End(double now) { last_end_ = now; }

 private:
  bool is_trial() const { return turn_ < 2 * kTrials; }
  Way tried() const { return turn_ < kTrials ? Way::kNear : Way::kFar; }

  void EndSpan(uint64_t position, double now) {
    if (is_continuous_ && is_trial() && turn_ % kTrials > 0) {
      double& least = tried() == Way::kNear ? least_near_ : least_far_;
      least = std::min(least,
                       (now - since_) / static_cast<double>(position - begin_));
    }
    ++turn_;
    if (turn_ == 2 * kTrials) {
      Choose();
      least_near_ = least_far_ = kNone;
    }
    turn_ %= kPeriod;
    begin_ = position;
    since_ = now;
    is_continuous_ = true;
  }

  void Choose() {
    if (std::max(least_near_, least_far_) == kNone) return;
    if (kMargin * least_far_ < least_near_) chosen_ = Way::kFar;
    if (kMargin * least_near_ < least_far_) chosen_ = Way::kNear;
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  const uint64_t span_bytes_;
  Way chosen_ = Way::kNear;
  int turn_ = 0;
  // Seconds a byte.
  double least_near_ = kNone;
  double least_far_ = kNone;
  // The present span.
  uint64_t begin_ = 0;
  double since_ = 0;
  bool is_continuous_ = true;
  double last_end_ = -kNone;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_WAY_CHOICE_H_
