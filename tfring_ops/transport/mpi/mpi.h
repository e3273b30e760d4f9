// Messages by MPI's non-blocking point-to-point calls.
#ifndef TFRING_OPS_TRANSPORT_MPI_MPI_H_
#define TFRING_OPS_TRANSPORT_MPI_MPI_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Works on a duplicate of the communicator with Fortran handle `comm` (the one
// form of a communicator that mpi4py and any MPI library agree on).
// Collective over that communicator.
//
// A wait of more than `timeout_seconds` returns DeadlineExceeded; 0 means no
// limit.  REQUIRES: MPI_THREAD_MULTIPLE, because other threads than Python's
// call MPI; and destruction before MPI_Finalize.
absl::StatusOr<std::unique_ptr<Transport>> MakeMpiTransport(
    int32_t comm, double timeout_seconds);

// Returns true if the MPI library reports that it takes a GPU's memory.
bool MpiIsCudaAware();

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_MPI_MPI_H_
