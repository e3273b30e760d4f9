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
#ifndef TESTS_GPU_FAKE_NCCL_FAKE_NCCL_H_
#define TESTS_GPU_FAKE_NCCL_FAKE_NCCL_H_

#include <atomic>

namespace tfring::fake_nccl {

// The behavior of the fake, which a test may change, and counts.
struct Options {
  std::atomic<int> version{22105};
  // 1: there is no unique ID.
  std::atomic<int> no_id{0};
  // The rank that cannot connect to its peers; -1 is none.
  std::atomic<int> fails_to_init{-1};
  // The rank that all wait for, from the first collective on; -1 is none.
  std::atomic<int> lost{-1};
  // The rank that notices an error in its first collective; -1 is none.
  std::atomic<int> async_error{-1};
  // A launch fails after so many have succeeded; -1 is never.
  std::atomic<int> launches_left{-1};
  // Collectives of this process, how many of these are on their streams, and
  // how many have begun on their GPUs.
  std::atomic<int> collectives{0}, launched{0}, begun{0};
  // 1: launches in different orders are not reported.
  std::atomic<int> any_order{0};
};

}  // namespace tfring::fake_nccl

#endif  // TESTS_GPU_FAKE_NCCL_FAKE_NCCL_H_
