#include "tfring_ops/transport/mpi/mpi_shared_memory.h"

#include <utility>

#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/transport/mpi/mpi.h"

namespace tfring {

absl::StatusOr<std::unique_ptr<Transport>> MakeNodeTransport(
    int32_t comm, double timeout_seconds, SharedMemory shared_memory) {
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Transport> mpi,
                          MakeMpiTransport(comm, timeout_seconds));
  return ShareWithinNodes(std::move(mpi), timeout_seconds, shared_memory);
}

}  // namespace tfring
