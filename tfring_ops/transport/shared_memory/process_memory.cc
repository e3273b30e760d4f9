#include "tfring_ops/transport/shared_memory/process_memory.h"

#include <sys/uio.h>

namespace tfring {

bool ReadProcessMemory(int64_t process, uint64_t address, Bytes target) {
  while (!target.empty()) {
    const iovec to{target.data(), target.size()};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
    const iovec from{reinterpret_cast<void*>(address), target.size()};
    const ssize_t read = process_vm_readv(static_cast<pid_t>(process), &to, 1,
                                          &from, 1, /*flags=*/0);
    if (read <= 0) return false;
    target.remove_prefix(read);
    address += read;
  }
  return true;
}

}  // namespace tfring
