// Support for tests that run under mpirun, with one process per rank.  Every
// rank runs every test; a failure of one rank fails the job.
#ifndef TESTS_CPP_MPI_WORLD_H_
#define TESTS_CPP_MPI_WORLD_H_

#include <mpi.h>

#include <memory>

#include "tfring_ops/transport/mpi/mpi.h"
#include "tfring_ops/transport/shared_memory/node_memory.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Every rank must call it.
inline std::unique_ptr<Transport> MakeWorldTransport(
    SharedMemory shared_memory, double timeout_seconds = 60) {
  return ShareWithinNodes(
             MakeMpiTransport(MPI_Comm_c2f(MPI_COMM_WORLD), timeout_seconds)
                 .value(),
             timeout_seconds, shared_memory)
      .value();
}

}  // namespace tfring

#endif  // TESTS_CPP_MPI_WORLD_H_
