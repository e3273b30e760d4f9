// The partners in recursive doubling: in each round a rank exchanges with a
// rank of another group, and the two groups become one.
//
// If the number of ranks is no power of two, the surplus ranks first give their
// data to a neighbour, and get the result in the end.
//
// Reference: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of
// collective communication operations in MPICH", Int. J. High Perform. Comput.
// Appl. 19 (2005), 4.5.
#ifndef TFRING_OPS_ALGORITHMS_PAIRWISE_DOUBLING_H_
#define TFRING_OPS_ALGORITHMS_PAIRWISE_DOUBLING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "tfring_ops/algorithms/ring/primitives.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Ranks are counted by `place`, from 0 to size - 1.
class Doubling {
 public:
  Doubling(int place, int size) : place_(place) {
    while (2 * doublers_ <= size) doublers_ *= 2;
    surplus_ = size - doublers_;
    number_ = paired() ? place / 2 : place - surplus_;
  }

  // Among the first 2 * surplus places, each even one gives its operand to the
  // odd one after it.
  bool gives() const { return paired() && place_ % 2 == 0; }
  bool takes() const { return paired() && place_ % 2 == 1; }
  int surplus_peer() const { return gives() ? place_ + 1 : place_ - 1; }

  // The remaining ranks exchange at distances 1, 2, 4, ... below this number.
  int doublers() const { return doublers_; }
  int Peer(int distance) const {
    const int other = number_ ^ distance;
    return other < surplus_ ? 2 * other + 1 : other + surplus_;
  }
  // Returns true if this place's operand is the first of the two.
  bool ComesFirst(int distance) const { return (number_ & distance) == 0; }

 private:
  bool paired() const { return place_ < 2 * surplus_; }

  const int place_;
  int doublers_ = 1;  // the largest power of two
  int surplus_ = 0;
  int number_ = 0;  // this place's number among the doublers
};

// Sends `sent` to `to` and receives `received` from `from`, in segments; the
// receives are posted first.  Either may be empty.
absl::Status SendRecv(const RingContext& context, int to, ConstBytes sent,
                      int from, Bytes received);

// Sends and receives `bytes`.  `sent` or `received` may be null.
absl::Status SendRecv(const RingContext& context, int to, const void* sent,
                      int from, void* received, int64_t bytes);

// SendRecv with one peer.
absl::Status SendRecv(const RingContext& context, int peer, const void* sent,
                      void* received, int64_t bytes);

}  // namespace tfring

#endif  // TFRING_OPS_ALGORITHMS_PAIRWISE_DOUBLING_H_
