// Copies between tensors on a GPU and pinned memory of the host, beside the
// computation: on two streams of the highest priority, one for each direction.
//
// Note [What copies wait for on a GPU]
//
// The framework enqueues work on a stream and runs ahead of it.  Memory is
// reused as soon as the work that uses it has been enqueued, because the next
// user comes after it on the same stream.  So
//
// 1. no copy begins before the framework's stream has done the work that was
//    enqueued when the copy was submitted.  Before a copy out, that work makes
//    the tensor; before a copy back, it may still use the memory that was
//    allocated for the tensor;
// 2. the host hears of a copy when it has ended, not when it was enqueued.
//    Until then nothing else may use the memory of the tensor or of the slot.
//
// So a copy waits for as long as the framework's stream does, which always
// ends: if a rank is lost, the waits for it are released.
//
// The framework's stream itself never waits for a copy: users of a fetched
// tensor are enqueued after 2.  If it waited, so would all work that is
// enqueued meanwhile and could run during the copy.
//
// Thread-safe.
//
// Invariants:
// - `done` of each copy is called exactly once: on a thread of the copier, or
//   by Submit if nothing could be enqueued.
// - If a context fails, its copies end with its error.
#ifndef TFRING_OPS_OFFLOAD_CUDA_COPIER_H_
#define TFRING_OPS_OFFLOAD_CUDA_COPIER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/offload/copier.h"

namespace tfring {

class CudaCopier {
 public:
  static absl::StatusOr<std::unique_ptr<CudaCopier>> Create(int ordinal);
  // Returns the copier of GPU `ordinal`.  It is never destroyed.
  static absl::StatusOr<CudaCopier*> Find(int ordinal);

  // The destructor waits for the copies that have been submitted.
  ~CudaCopier();
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;

  // Submits a copy.  `stream` is the framework's, a CUstream.
  void Submit(Copier::Direction direction, void* stream, char* device,
              char* pinned, int64_t bytes, Copier::Done done);

 private:
  class Lane;

  CudaCopier(std::unique_ptr<Lane> out, std::unique_ptr<Lane> back);

  const std::unique_ptr<Lane> out_;
  const std::unique_ptr<Lane> back_;
};

}  // namespace tfring

#endif  // TFRING_OPS_OFFLOAD_CUDA_COPIER_H_
