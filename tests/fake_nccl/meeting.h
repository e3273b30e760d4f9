// Where the ranks of a communicator meet: memory that they share.
#ifndef TESTS_FAKE_NCCL_MEETING_H_
#define TESTS_FAKE_NCCL_MEETING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tfring::fake_nccl {

inline constexpr int kMostRanks = 8;
inline constexpr size_t kSlotBytes = 32 << 10;
// Of one communicator, that are not done on all ranks.
inline constexpr int kMostLaunches = 64;

// How many launches of another communicator were before one, on the same GPU.
struct Before {
  uint64_t communicator;
  uint64_t launches;
};
// Of all that are known there, and then zeros.
using AllBefore = std::array<Before, 32>;

// How another rank finds it.
struct Address {
  uint64_t magic;
  int32_t process;
  int32_t file;
};

class Meeting {
 public:
  // Returns false if there is no memory.
  static bool Found(Address& address);
  // Null if the address is none.
  static Meeting* Join(const Address& address, int size);
  static void Leave(Meeting* meeting);

  // Rank `rank` is here, with the GPU `uuid`.
  void Arrive(int rank, const char* uuid);
  bool AllAreHere() const;
  bool TwoShareAGpu() const;

  // Returns when all ranks have called it equally often, or false as soon as
  // `ends`.
  bool Meet(int rank, const std::atomic<bool>& ends);

  // Rank `rank` has launched its next collective, after those.
  void Launch(int rank, const AllBefore& before);
  // Returns when all ranks have launched that of number `launch`, from 0 on, or
  // `ends`: true if two of them have launched those of another communicator,
  // which both have, in different orders.
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

#endif  // TESTS_FAKE_NCCL_MEETING_H_
