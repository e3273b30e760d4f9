// NCCL for the GPUs of tests/fake_cuda: takes the place of libnccl.so.2 where
// there is none, so that the code that calls it runs in tests.
//
// A collective is a task of the stream, which meets those of the other ranks,
// threads or processes, in shared memory.  It returns errors for uses that NCCL
// forbids: a call in no context, a communicator that is still busy, two ranks
// on one GPU, two communicators whose collectives two ranks launch in different
// orders.  It is also late: a collective is on the stream no sooner than at the
// second query of the communicator's state.  And it fills its GPU: a collective
// that has begun leaves no room for one of another communicator, so that ranks
// which begin with different ones wait for ever.
//
// Options, each also read at the start from the environment as FAKE_NCCL_...:
//   VERSION        its own version number
//   NO_ID          1: there is no unique ID
//   FAILS_TO_INIT  the rank that cannot be connected to the others; -1 is none
//   LOST           the rank that all wait for, from the first collective on
//   ASYNC_ERROR    the rank that notices an error in its first collective
//   LAUNCHES_LEFT  a launch fails when this many have succeeded; -1 is never
//   COLLECTIVES    how many there have been, of this process
//   LAUNCHED       how many of these have come on their streams
//   BEGUN          and how many of these have begun on their GPUs
//   ANY_ORDER      1: that launches are in different orders is not said
#ifndef TESTS_FAKE_NCCL_FAKE_NCCL_H_
#define TESTS_FAKE_NCCL_FAKE_NCCL_H_

#include <atomic>

namespace tfring::fake_nccl {

struct Options {
  std::atomic<int> version, no_id, fails_to_init, lost, async_error,
      launches_left, collectives, launched, begun, any_order;
};

}  // namespace tfring::fake_nccl

#endif  // TESTS_FAKE_NCCL_FAKE_NCCL_H_
