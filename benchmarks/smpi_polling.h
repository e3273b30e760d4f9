// What tfring_ops/transport/mpi is compiled with for benchmarks/scale_smpi.cc
// (-include): a rank that polls would poll forever, because SMPI's clock stands
// still meanwhile.  So here MPI_Test notes what is incomplete, and the pause
// between two polls is a wait for the first of these operations.
//
// All ranks are fibers of one thread.
#ifndef TFRING_BENCHMARKS_SMPI_POLLING_H_
#define TFRING_BENCHMARKS_SMPI_POLLING_H_

// SMPI's headers define functions of libc as macros, so libc's come first.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <simgrid/s4u.hpp>
#include <thread>
#include <unordered_map>
#include <vector>

#include "benchmarks/clusters.h"
#include "tfring_ops/base/backoff.h"

#define SMPI_NO_OVERRIDE_MALLOC
#include <mpi.h>

namespace tfring {

// The operations of a rank that it has tested.
struct SmpiPolled {
  std::vector<MPI_Request*> incomplete;                // since the last pause
  std::unordered_map<MPI_Request*, MPI_Status> ended;  // in a pause
};
inline SmpiPolled& PolledByThisRank() {
  static auto* const ranks = new std::unordered_map<aid_t, SmpiPolled>;
  return (*ranks)[simgrid::s4u::this_actor::get_pid()];
}

inline int SmpiTest(MPI_Request* request, int* complete, MPI_Status* status) {
  SmpiPolled& polled = PolledByThisRank();
  if (const auto ended = polled.ended.find(request);
      ended != polled.ended.end()) {
    *complete = 1;
    if (status != MPI_STATUS_IGNORE) *status = ended->second;
    polled.ended.erase(ended);
    return MPI_SUCCESS;
  }
  auto& noted = polled.incomplete;
  const auto place = std::find(noted.begin(), noted.end(), request);
  const int error = MPI_Test(request, complete, status);
  const bool waits = error == MPI_SUCCESS && !*complete;
  if (waits && place == noted.end()) noted.push_back(request);
  if (!waits && place != noted.end()) noted.erase(place);
  return error;
}

class SmpiBackoff {
 public:
  explicit SmpiBackoff(int /*yields*/) {}
  void Pause() {
    ++pauses_;
    SmpiPolled& polled = PolledByThisRank();
    std::vector<MPI_Request> requests;
    for (const MPI_Request* const one : polled.incomplete) {
      requests.push_back(*one);
    }
    int first = MPI_UNDEFINED;
    MPI_Status status;
    MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &first,
                &status);
    if (first == MPI_UNDEFINED) std::abort();  // nothing to wait for
    MPI_Request* const ended = polled.incomplete[first];
    polled.ended[ended] = status;
    *ended = MPI_REQUEST_NULL;
    polled.incomplete.clear();
  }
  bool SeldomTurn() const { return pauses_ % 64 == 0; }

 private:
  int64_t pauses_ = 0;
};

// A rank has a host of its own, whose links are the rank's; SMPI takes the
// ranks of a host for those of a node.
inline int SmpiSplitByNode(MPI_Comm comm, int /*type*/, int key,
                           MPI_Info /*info*/, MPI_Comm* node) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return MPI_Comm_split(comm, rank / kRanksPerNode, key, node);
}

// SMPI's own sends all to all at once, which takes it minutes on 512 ranks.
inline int SmpiAllgather(const void* sent, int sent_count,
                         MPI_Datatype sent_type, void* received, int count,
                         MPI_Datatype type, MPI_Comm comm) {
  MPI_Gather(sent, sent_count, sent_type, received, count, type, 0, comm);
  int size = 0;
  MPI_Comm_size(comm, &size);
  return MPI_Bcast(received, size * count, type, 0, comm);
}

}  // namespace tfring

#define Backoff SmpiBackoff
#define MPI_Allgather SmpiAllgather
#define MPI_Test SmpiTest
#define MPI_Comm_split_type SmpiSplitByNode

#endif  // TFRING_BENCHMARKS_SMPI_POLLING_H_
