// Copies between the memory of the GPU and of the host.
#include <cstdint>
#include <cstring>

#include "tests/gpu/fake/cuda/entry.h"
#include "tests/gpu/fake/cuda/fake_cuda.h"

using namespace tfring::fake_cuda;  // NOLINT(google-build-using-namespace)

namespace {

uint64_t Address(const void* host) { return reinterpret_cast<uint64_t>(host); }

// A null address is not GPU memory.
int Copy(std::byte* to, const std::byte* from, size_t bytes, void* handle) {
  Stream* stream = nullptr;
  RETURN_IF_ERROR(Check());
  RETURN_IF_ERROR(FindStream(handle, &stream));
  if (bytes == 0) return kSuccess;
  if (to == nullptr || from == nullptr) return kInvalidValue;
  Enqueue(stream, [=] {
    std::memcpy(to, from, bytes);
    return kSuccess;
  });
  return kSuccess;
}

// Memory of the host, pinned or not.
template <typename T>
T* Host(T* memory, size_t bytes) {
  const uint64_t address = Address(memory);
  auto* const found = reinterpret_cast<T*>(OnHost(address, bytes));
  return found == nullptr || Address(found) == address ? memory : nullptr;
}

// After a copy of memory of the host.
int MayWait(const void* host, size_t bytes, void* handle) {
  if (GetOptions().waits == 0) return kSuccess;
  const bool is_pinned = OnHost(Address(host), bytes) != nullptr;
  if (is_pinned) return kSuccess;
  Stream* stream = nullptr;
  RETURN_IF_ERROR(FindStream(handle, &stream));
  WaitUntilIdle(stream);
  return Check();
}

}  // namespace

ENTRY cuMemcpyHtoDAsync_v2(uint64_t to, const std::byte* from, size_t bytes,
                           void* stream) {
  RETURN_IF_ERROR(Copy(OnHost(to, bytes), Host(from, bytes), bytes, stream));
  return MayWait(from, bytes, stream);
}
ENTRY cuMemcpyDtoHAsync_v2(std::byte* to, uint64_t from, size_t bytes,
                           void* stream) {
  RETURN_IF_ERROR(Copy(Host(to, bytes), OnHost(from, bytes), bytes, stream));
  return MayWait(to, bytes, stream);
}
ENTRY cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes,
                           void* stream) {
  GetCounts().copied_bytes += static_cast<int64_t>(bytes);
  return Copy(OnHost(to, bytes), OnHost(from, bytes), bytes, stream);
}
