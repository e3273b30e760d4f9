// Objects that the process must not free before it ends.
#ifndef TFRING_OPS_BASE_FOREVER_H_
#define TFRING_OPS_BASE_FOREVER_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tfring {

// Never destroys `value`, because a peer or a GPU may still use its memory.
// The value can be reached until the process ends, so a leak checker does not
// report it.
template <typename T>
void KeepForever(T value) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  auto holder = std::make_shared<T>(std::move(value));
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(std::move(holder));
}

}  // namespace tfring

#endif  // TFRING_OPS_BASE_FOREVER_H_
