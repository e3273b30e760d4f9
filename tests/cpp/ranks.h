// Ranks as threads of the test's process.
#ifndef TESTS_CPP_RANKS_H_
#define TESTS_CPP_RANKS_H_

#include <thread>
#include <vector>

#include "tfring_ops/transport/in_process.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Calls body(rank) for ranks 0 to size - 1, each on a thread of its own, and
// returns when all have returned.
template <typename Body>
void OnThreads(int size, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Calls body(transport) on every rank of an in-process job.
template <typename Body>
void OnRanks(int size, const Body& body) {
  const auto transports = MakeInProcessTransports(size);
  OnThreads(size, [&](int rank) { body(*transports[rank]); });
}

}  // namespace tfring

#endif  // TESTS_CPP_RANKS_H_
