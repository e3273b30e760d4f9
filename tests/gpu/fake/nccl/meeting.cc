#include "tests/gpu/fake/nccl/meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

namespace tfring::fake_nccl {
namespace {

constexpr uint64_t kMagic = 0x666b6e63636c6964;

}  // namespace

// The file stays open until the process ends, because ranks may join late.
bool Meeting::Found(Address& address) {
  const int file = memfd_create("fake_nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return false;
  address = {kMagic, getpid(), file};
  return true;
}

Meeting* Meeting::Join(const Address& address, int size) {
  if (address.magic != kMagic || size > kMostRanks) return nullptr;
  const std::string path = "/proc/" + std::to_string(address.process) + "/fd/" +
                           std::to_string(address.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  return new Meeting(static_cast<Shared*>(memory), size);
}

void Meeting::Leave(Meeting* meeting) {
  munmap(meeting->shared_, sizeof(Shared));
  delete meeting;
}

void Meeting::Arrive(int rank, const char* uuid) {
  std::memcpy(shared_->uuids[rank], uuid, sizeof(shared_->uuids[rank]));
  ++shared_->arrived;
}

bool Meeting::AllAreHere() const { return shared_->arrived == size_; }

bool Meeting::TwoShareAGpu() const {
  for (int rank = 0; rank < size_; ++rank) {
    for (int other = 0; other < rank; ++other) {
      if (std::memcmp(shared_->uuids[rank], shared_->uuids[other],
                      sizeof(shared_->uuids[rank])) == 0) {
        return true;
      }
    }
  }
  return false;
}

void Meeting::Launch(int rank, const AllBefore& before) {
  std::atomic<uint64_t>& launches = shared_->launches[rank];
  shared_->before[rank][launches % kMostLaunches] = before;
  ++launches;
}

bool Meeting::OrdersDiffer(uint64_t launch,
                           const std::atomic<bool>& ends) const {
  for (int rank = 0; rank < size_; ++rank) {
    while (shared_->launches[rank] <= launch) {
      if (ends) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  std::map<uint64_t, uint64_t> known;
  for (int rank = 0; rank < size_; ++rank) {
    for (const Before& before : shared_->before[rank][launch % kMostLaunches]) {
      if (before.communicator == 0) break;
      const auto [found, is_new] =
          known.emplace(before.communicator, before.launches);
      if (!is_new && found->second != before.launches) return true;
    }
  }
  return false;
}

bool Meeting::Meet(int rank, const std::atomic<bool>& ends) {
  const uint64_t number = ++shared_->meetings[rank];
  for (int other = 0; other < size_; ++other) {
    while (shared_->meetings[other] < number) {
      if (ends) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

}  // namespace tfring::fake_nccl
