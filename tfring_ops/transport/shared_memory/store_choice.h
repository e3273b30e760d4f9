// How the parts of messages are written into a channel's ring.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_STORE_CHOICE_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_STORE_CHOICE_H_

#include <algorithm>
#include <limits>

namespace tfring {

// Note [Plain or streaming stores]
//
// The reader has read the lines that the writer writes anew, so the writer has
// to take them from the reader's caches.  If that is fast, plain stores are
// best: the reader then finds the data in a cache.  If it is slow, plain stores
// were seen to write 2 GB/s, and streaming stores, which take no line, 20.  The
// speed changes while a program runs, as a virtual machine's cores move, or its
// threads.
//
// So both are tried now and then.  The least time counts, since a thread may
// lose its core.  Streaming has to be much faster: the reader then reads from
// memory, and takes longer.
class StoreChoice {
 public:
  static constexpr int kTrials = 4;    // of each, one after the other
  static constexpr int kPeriod = 512;  // parts from trial to trial
  static constexpr double kMuchFaster = 4;

  // True if the next part is to be written by streaming stores.
  bool streams() const { return tries() ? turn_ >= kTrials : streams_; }

  // The part was written: a byte took `seconds`.
  void Written(double seconds) {
    if (tries()) {
      double& least = streams() ? least_streaming_ : least_plain_;
      least = std::min(least, seconds);
    }
    ++turn_;
    if (turn_ == 2 * kTrials) {
      streams_ = least_plain_ > kMuchFaster * least_streaming_;
      least_plain_ = least_streaming_ = kNone;
    }
    turn_ %= kPeriod;
  }

 private:
  bool tries() const { return turn_ < 2 * kTrials; }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  int turn_ = 0;
  bool streams_ = false;
  double least_plain_ = kNone;
  double least_streaming_ = kNone;
};

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_STORE_CHOICE_H_
