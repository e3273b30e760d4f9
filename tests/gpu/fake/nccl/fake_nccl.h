// NCCL for the GPUs of tests/gpu/fake/cuda.  It replaces libnccl.so.2 on
// machines without one, so that the code that calls NCCL runs in tests.
//
// A collective is a task of the stream.  It meets the tasks of its peers,
// threads or processes, in shared memory.  The fake returns errors for uses
// that NCCL forbids: a call without a context, a call on a busy communicator,
// two ranks on one GPU, and collectives of two communicators that two ranks
// launch in different orders.  It is also late: a collective is on its stream
// only after the second query of the communicator's state.  And a collective
// fills its GPU: once it has begun, no collective of another communicator can
// begin.  Ranks that begin with different communicators therefore deadlock.
//
// Options, each also read at the start from the environment as FAKE_NCCL_...:
//   VERSION        its own version number
//   NO_ID          1: there is no unique ID
//   FAILS_TO_INIT  the rank that cannot connect to its peers; -1 is none
//   LOST           the rank that all wait for, from the first collective on
//   ASYNC_ERROR    the rank that notices an error in its first collective
//   LAUNCHES_LEFT  a launch fails after this many have succeeded; -1 is never
//   COLLECTIVES    how many there have been, of this process
//   LAUNCHED       how many of these are on their streams
//   BEGUN          and how many of these have begun on their GPUs
//   ANY_ORDER      1: launches in different orders are not reported
#ifndef TESTS_GPU_FAKE_NCCL_FAKE_NCCL_H_
#define TESTS_GPU_FAKE_NCCL_FAKE_NCCL_H_

#include <atomic>

namespace tfring::fake_nccl {

struct Options {
  std::atomic<int> version, no_id, fails_to_init, lost, async_error,
      launches_left, collectives, launched, begun, any_order;
};

}  // namespace tfring::fake_nccl

#endif  // TESTS_GPU_FAKE_NCCL_FAKE_NCCL_H_
