// Device memory: memory files, mapped, at addresses of its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <string>

#include "tests/fake_cuda/fake_cuda.h"

namespace tfring::fake_cuda {
namespace {

constexpr uint64_t kMagic = 0x666b636463756461;
constexpr int kInvalidValue = 1, kInvalidContext = 201, kMapFailed = 205,
              kNotSupported = 801;

struct Block {
  std::byte* host;
  size_t bytes;
  int file;    // -1: imported
  int opened;  // by this process itself
};

std::mutex mutex;

// By device address.
std::map<uint64_t, Block>& Blocks() {
  static auto* const blocks = new std::map<uint64_t, Block>();
  return *blocks;
}

// Nothing is mapped there: who reads it on the host, crashes.
uint64_t DeviceAddressOf(const std::byte* host) {
  return reinterpret_cast<uint64_t>(host) ^ (uint64_t{1} << 46);
}

uint64_t Map(int file, size_t bytes, bool imported) {
  void* const host =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (host == MAP_FAILED) return 0;
  auto* const memory = static_cast<std::byte*>(host);
  const uint64_t address = DeviceAddressOf(memory);
  std::lock_guard<std::mutex> lock(mutex);
  Blocks()[address] = {memory, bytes, imported ? -1 : file, 0};
  return address;
}

bool Unmap(uint64_t address, bool imported) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = Blocks().find(address);
  if (found == Blocks().end()) return false;
  if (imported && found->second.opened > 0) {
    --found->second.opened;
    return true;
  }
  if (imported != (found->second.file < 0)) return false;
  if (found->second.opened > 0) ++GetCounts().freed_while_open;
  munmap(found->second.host, found->second.bytes);
  if (found->second.file >= 0) close(found->second.file);
  Blocks().erase(found);
  return true;
}

}  // namespace

uint64_t Allocate(size_t bytes) {
  if (bytes == 0) return 0;
  const int file = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0) return 0;
  uint64_t address = 0;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    address = Map(file, bytes, /*imported=*/false);
  }
  if (address == 0) close(file);
  return address;
}

bool Free(uint64_t address) {
  WaitUntilAllIdle();
  return Unmap(address, /*imported=*/false);
}

bool Export(uint64_t address, Handle& handle) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = Blocks().find(address);
  if (found == Blocks().end() || found->second.file < 0) return false;
  handle = {kMagic, getpid(), found->second.file, found->second.bytes, address};
  return true;
}

int Import(const Handle& handle, uint64_t& address) {
  if (GetOptions().no_ipc) return kNotSupported;
  if (handle.magic != kMagic) return kInvalidValue;
  if (handle.process == getpid()) {
    if (!GetOptions().open_own) return kInvalidContext;
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = Blocks().find(handle.address);
    if (found == Blocks().end()) return kInvalidValue;
    ++found->second.opened;
    address = handle.address;
    return 0;
  }
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" +
                           std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kMapFailed;
  address = Map(file, handle.bytes, /*imported=*/true);
  close(file);
  return address == 0 ? kMapFailed : 0;
}

bool CloseImported(uint64_t address) {
  return Unmap(address, /*imported=*/true);
}

std::byte* OnHost(uint64_t address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = Blocks().upper_bound(address);
  if (found != Blocks().begin()) {
    --found;
    const uint64_t offset = address - found->first;
    if (offset < found->second.bytes) return found->second.host + offset;
  }
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace tfring::fake_cuda
