// Device memory: memory files, mapped, at addresses of its own; and what memory
// of the host the GPU may use.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/fake/cuda/fake_cuda.h"

namespace tfring::fake_cuda {
namespace {

constexpr uint64_t kMagic = 0x666b636463756461;

struct Block {
  enum class Kind { kOwn, kImported, kPinned, kRegistered };

  Kind kind;
  std::byte* host;
  size_t bytes;
  Context* context;
  int file;            // kOwn
  uint64_t exporting;  // kImported: the number of the file
  int opened;          // kImported, and kOwn by this process itself
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

// REQUIRES: the mutex is held.
uint64_t Map(Block::Kind kind, int file, size_t bytes, uint64_t exporting) {
  void* const host =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (host == MAP_FAILED) return 0;
  auto* const memory = static_cast<std::byte*>(host);
  const uint64_t address = DeviceAddressOf(memory);
  Blocks()[address] = {kind,
                       memory,
                       bytes,
                       CurrentContext(),
                       kind == Block::Kind::kOwn ? file : -1,
                       exporting,
                       kind == Block::Kind::kImported ? 1 : 0};
  return address;
}

void Unmap(const Block& block) {
  if (block.kind == Block::Kind::kRegistered) return;
  if (block.kind == Block::Kind::kPinned) {
    std::free(block.host);
    return;
  }
  munmap(block.host, block.bytes);
  if (block.file >= 0) close(block.file);
}

// The block of that kind that begins at `address`, or the end.
std::map<uint64_t, Block>::iterator Find(uint64_t address, Block::Kind kind) {
  const auto found = Blocks().find(address);
  const bool fits = found != Blocks().end() && found->second.kind == kind;
  return fits ? found : Blocks().end();
}

Block OnHostItself(Block::Kind kind, void* memory, size_t bytes) {
  return {kind, static_cast<std::byte*>(memory), bytes, CurrentContext(), -1, 0,
          0};
}

int Remove(void* memory, Block::Kind kind, int otherwise) {
  WaitUntilAllIdle();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Find(reinterpret_cast<uint64_t>(memory), kind);
  if (found == Blocks().end()) return otherwise;
  Unmap(found->second);
  Blocks().erase(found);
  return kSuccess;
}

uint64_t NumberOf(int file) {
  struct stat facts{};
  fstat(file, &facts);
  return facts.st_ino;
}

}  // namespace

uint64_t Allocate(size_t bytes) {
  const int file = memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0) return 0;
  uint64_t address = 0;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) {
    const std::lock_guard<std::mutex> lock(mutex);
    address = Map(Block::Kind::kOwn, file, bytes, 0);
  }
  if (address == 0) close(file);
  return address;
}

int Free(uint64_t address) {
  WaitUntilAllIdle();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Find(address, Block::Kind::kOwn);
  if (found == Blocks().end()) return kInvalidValue;
  if (found->second.context != CurrentContext()) return kInvalidContext;
  if (found->second.opened > 0) ++GetCounts().freed_while_open;
  Unmap(found->second);
  Blocks().erase(found);
  return kSuccess;
}

void* AllocatePinned(size_t bytes) {
  void* const memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  const std::lock_guard<std::mutex> lock(mutex);
  Blocks()[reinterpret_cast<uint64_t>(memory)] =
      OnHostItself(Block::Kind::kPinned, memory, bytes);
  return memory;
}

int FreePinned(void* memory) {
  return Remove(memory, Block::Kind::kPinned, kInvalidValue);
}

int Register(void* memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  const bool is_new =
      Blocks()
          .emplace(reinterpret_cast<uint64_t>(memory),
                   OnHostItself(Block::Kind::kRegistered, memory, bytes))
          .second;
  return is_new ? kSuccess : kAlreadyRegistered;
}

int Unregister(void* memory) {
  return Remove(memory, Block::Kind::kRegistered, kNotRegistered);
}

bool Export(uint64_t address, Handle& handle) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Find(address, Block::Kind::kOwn);
  if (found == Blocks().end()) return false;
  const Block& block = found->second;
  handle = {kMagic,      getpid(), block.file, NumberOf(block.file),
            block.bytes, address};
  return true;
}

int Import(const Handle& handle, uint64_t& address) {
  if (GetOptions().no_ipc) return kNotSupported;
  if (handle.magic != kMagic) return kInvalidValue;
  const std::lock_guard<std::mutex> lock(mutex);
  if (handle.process == getpid()) {
    if (!GetOptions().open_own) return kInvalidContext;
    const auto found = Find(handle.address, Block::Kind::kOwn);
    if (found == Blocks().end()) return kInvalidValue;
    ++found->second.opened;
    ++GetCounts().open_handles;
    address = handle.address;
    return kSuccess;
  }
  for (auto& [known, block] : Blocks()) {
    if (block.exporting != handle.file_number) continue;
    ++block.opened;
    ++GetCounts().open_handles;
    address = known;
    return kSuccess;
  }
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" +
                           std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kMapFailed;
  address =
      NumberOf(file) == handle.file_number
          ? Map(Block::Kind::kImported, file, handle.bytes, handle.file_number)
          : 0;
  close(file);
  if (address == 0) return kMapFailed;
  ++GetCounts().open_handles;
  return kSuccess;
}

bool CloseImported(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Blocks().find(address);
  if (found == Blocks().end() || found->second.opened == 0) return false;
  --GetCounts().open_handles;
  if (--found->second.opened > 0) return true;
  if (found->second.kind == Block::Kind::kImported) {
    Unmap(found->second);
    Blocks().erase(found);
  }
  return true;
}

std::byte* OnHost(uint64_t address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = Blocks().upper_bound(address);
  if (found == Blocks().begin()) return nullptr;
  --found;
  const Block& block = found->second;
  const uint64_t offset = address - found->first;
  const bool inside = offset <= block.bytes && bytes <= block.bytes - offset;
  return inside ? block.host + offset : nullptr;
}

std::atomic<uint32_t>* Number(uint64_t address) {
  if (address % sizeof(uint32_t) != 0) return nullptr;
  return reinterpret_cast<std::atomic<uint32_t>*>(
      OnHost(address, sizeof(uint32_t)));
}

bool IsImported(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = Blocks().upper_bound(address);
  if (found == Blocks().begin()) return false;
  return (--found)->second.kind == Block::Kind::kImported;
}

void EndMemory(const Context* context) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (auto found = Blocks().begin(); found != Blocks().end();) {
    if (found->second.context != context) {
      ++found;
      continue;
    }
    if (found->second.opened > 0 && found->second.kind == Block::Kind::kOwn) {
      ++GetCounts().freed_while_open;
    }
    ++GetCounts().left_in_context;
    Unmap(found->second);
    found = Blocks().erase(found);
  }
}

}  // namespace tfring::fake_cuda
