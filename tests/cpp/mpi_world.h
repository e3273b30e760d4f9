// Tests whose ranks are processes under mpirun.  Every rank runs every test;
// a failure of one rank is the job's.
#ifndef TESTS_CPP_MPI_WORLD_H_
#define TESTS_CPP_MPI_WORLD_H_

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <memory>

#include "tfring_ops/transport/mpi/mpi_shared_memory.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// Every rank must call it.
inline std::unique_ptr<Transport> MakeWorldTransport(
    SharedMemory shared_memory, double timeout_seconds = 60) {
  return MakeNodeTransport(MPI_Comm_c2f(MPI_COMM_WORLD), timeout_seconds,
                           shared_memory)
      .value();
}

inline int RunMpiTests(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    std::fputs("this MPI has no MPI_THREAD_MULTIPLE\n", stderr);
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  // The others may be waiting for this rank.
  if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  return 0;
}

}  // namespace tfring

#endif  // TESTS_CPP_MPI_WORLD_H_
