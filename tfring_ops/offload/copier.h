// Threads that copy between tensors and a tier, beside the computation.
//
// A copy is cut into pieces, which all threads share, so that one large tensor
// has the bandwidth of several cores.  Copies back have priority: the
// computation waits for them, whereas a copy out only delays the release of
// memory.
//
// Thread-safe.
//
// Invariant: `done` of each copy is called exactly once, after its last piece,
// on one of the threads.
#ifndef TFRING_OPS_OFFLOAD_COPIER_H_
#define TFRING_OPS_OFFLOAD_COPIER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace tfring {

class Copier {
 public:
  enum class Direction { kOut, kBack };

  // Copies of this class always succeed; those of a GPU may fail.
  using Done = std::function<void(absl::Status status)>;

  explicit Copier(int threads);
  // The destructor waits for the copies that have been submitted.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Returns the process's copier, which is never destroyed.
  static Copier& Global();

  // Submits a copy.
  // REQUIRES: bytes > 0; `from` and `to` stay valid until `done` is called.
  void Submit(Direction direction, const char* from, char* to, int64_t bytes,
              Done done);

 private:
  struct Copy;

  void Run();
  void RunPiece(const std::shared_ptr<Copy>& copy, int64_t offset);
  // REQUIRES: mutex_ is held.
  std::shared_ptr<Copy> Next(int64_t* offset);

  std::mutex mutex_;  // guards all members except the threads
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Copy>> out_;
  std::deque<std::shared_ptr<Copy>> back_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_COPIER_H_
