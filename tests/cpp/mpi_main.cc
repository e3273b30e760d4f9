// Main program of the tests that run under mpirun, with one process per rank.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    std::fputs("this MPI has no MPI_THREAD_MULTIPLE\n", stderr);
    return 1;
  }
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  // Rank 0 reports for all.
  if (rank > 0) testing::GTEST_FLAG(output) = "";
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  // The remaining ranks may be waiting for this rank.
  if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  return 0;
}
