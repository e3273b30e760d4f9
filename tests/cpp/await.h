// Lets a test wait for another thread.
#ifndef TESTS_CPP_AWAIT_H_
#define TESTS_CPP_AWAIT_H_

#include <chrono>
#include <thread>

namespace tfring {

// Returns when `happened`; false if that takes half a minute.
template <typename Condition>
bool Await(const Condition& happened) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace tfring

#endif  // TESTS_CPP_AWAIT_H_
