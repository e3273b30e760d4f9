// The GPU's context in threads that make progress on messages of its memory.
//
// A CUDA-aware MPI copies from and to GPUs in any later call, by any thread and
// for any communicator, and works in the context that is current there.  The
// calls of a GPU's lane make its context current while they last; MPI calls of
// another engine, a worker or the negotiation do not.
//
// Thread-safe.
#ifndef TFRING_OPS_TRANSPORT_CUDA_PROGRESS_CONTEXT_H_
#define TFRING_OPS_TRANSPORT_CUDA_PROGRESS_CONTEXT_H_

#include "absl/status/status.h"

namespace tfring {

// Notes that messages of GPU `ordinal` go by MPI from now on.  Its primary
// context is never released, because threads keep it.
absl::Status ShareProgressContext(int ordinal);

// Makes that context the calling thread's, unless the thread has one or there
// is none.
void EnterProgressContext();

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_PROGRESS_CONTEXT_H_
