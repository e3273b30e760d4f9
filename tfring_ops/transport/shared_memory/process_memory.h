// Reading the memory of another process of this node.
#ifndef TFRING_OPS_TRANSPORT_SHARED_MEMORY_PROCESS_MEMORY_H_
#define TFRING_OPS_TRANSPORT_SHARED_MEMORY_PROCESS_MEMORY_H_

#include <cstdint>

#include "tfring_ops/transport/transport.h"

namespace tfring {

// Copies the bytes at `address` of `process` to `target`.  Returns false if the
// system does not allow it, or there is no such memory; `target` is undefined
// then.
bool ReadProcessMemory(int64_t process, uint64_t address, Bytes target);

}  // namespace tfring

#endif  // TFRING_OPS_TRANSPORT_SHARED_MEMORY_PROCESS_MEMORY_H_
