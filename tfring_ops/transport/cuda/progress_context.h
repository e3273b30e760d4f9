// The GPU's context in threads that move messages of its memory along.
//
// A CUDA-aware MPI copies from and to GPUs in any later call, by any thread and
// for any communicator, and works in the context that is current there.  The
// engine's own calls make theirs current for as long as they last; what another
// engine, a worker or the negotiation asks MPI for does not.
//
// Thread-safe.
#ifndef TFRING_OPS_TRANSPORT_CUDA_PROGRESS_CONTEXT_H_
#define TFRING_OPS_TRANSPORT_CUDA_PROGRESS_CONTEXT_H_

#include "absl/status/status.h"

namespace tfring {

// Messages of GPU `ordinal` go by MPI from here on.  Its primary context is
// kept for ever, as threads keep it.
absl::Status ShareProgressContext(int ordinal);

// Makes that context the calling thread's, unless the thread has one or there
// is none.
void EnterProgressContext();

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_CUDA_PROGRESS_CONTEXT_H_
