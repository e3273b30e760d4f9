// Shared memory where the ranks of a communicator meet.
#ifndef TESTS_GPU_FAKE_NCCL_MEETING_H_
#define TESTS_GPU_FAKE_NCCL_MEETING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tfring::fake_nccl {

inline constexpr int kMostRanks = 8;
inline constexpr size_t kSlotBytes = 32 << 10;
// Launches of one communicator that are not done on all ranks.
inline constexpr int kMostLaunches = 64;

// The number of earlier launches of another communicator on the same GPU.
struct Before {
  uint64_t communicator;
  uint64_t launches;
};
// The counts of all communicators known on that GPU, followed by zeros.
using AllBefore = std::array<Before, 32>;

// The address at which another rank finds the meeting.
struct Address {
  uint64_t magic;
  int32_t process;
  int32_t file;
};

class Meeting {
 public:
  // Returns false if there is no memory.
  static bool Found(Address& address);
  // Returns null if the address is invalid.
  static Meeting* Join(const Address& address, int size);
  static void Leave(Meeting* meeting);

  // Rank `rank` is here, with the GPU `uuid`.
  void Arrive(int rank, const char* uuid);
  bool AllAreHere() const;
  bool TwoShareAGpu() const;

  // Returns when all ranks have called it equally often, or false as soon as
  // `ends`.
  bool Meet(int rank, const std::atomic<bool>& ends);

  // Records that rank `rank` has launched its next collective, after those in
  // `before`.
  void Launch(int rank, const AllBefore& before);
  // Returns when all ranks have launched their collective number `launch`,
  // counted from 0, or `ends`.  Returns true if two ranks share another
  // communicator and have ordered its launches differently.
  bool OrdersDiffer(uint64_t launch, const std::atomic<bool>& ends) const;

  std::byte* slot(int rank) { return shared_->slots[rank]; }
  int size() const { return size_; }

 private:
  struct Shared {
    std::atomic<int> arrived;
    char uuids[kMostRanks][16];
    std::atomic<uint64_t> meetings[kMostRanks];
    std::atomic<uint64_t> launches[kMostRanks];
    AllBefore before[kMostRanks][kMostLaunches];  // by turns
    alignas(64) std::byte slots[kMostRanks][kSlotBytes];
  };

  Meeting(Shared* shared, int size) : shared_(shared), size_(size) {}

  Shared* const shared_;
  const int size_;
};

}  // namespace tfring::fake_nccl

#endif  // TESTS_GPU_FAKE_NCCL_MEETING_H_
