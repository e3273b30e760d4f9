// An ordered set of ranks and the two channels between them.
#ifndef TFRING_OPS_ENGINE_PROCESS_SET_H_
#define TFRING_OPS_ENGINE_PROCESS_SET_H_

#include <memory>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Agreement and data never mix, so that a message of the one cannot be taken
// for a message of the other.  Both have the same ranks in the same order.
struct ProcessSet {
  int id = 0;  // 0 is the world
  std::unique_ptr<Transport> control;
  std::unique_ptr<Transport> data;
};

}  // namespace tfring

#endif  // TFRING_OPS_ENGINE_PROCESS_SET_H_
