// Waits use almost no CPU, by the accounting of the kernel.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <ctime>
#include <memory>
#include <thread>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"

namespace tfring {
namespace {

double CpuSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
}

TEST(WaitsTest, AnIdleEngineUsesNoCpu) {
  constexpr int kSize = 4;
  Job job(kSize);
  ExpectWorks(job);
  const double before = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  // A thread that polls without sleep would take all 0.5 s.
  EXPECT_LT(CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - before, 0.05 * kSize);
}

TEST(WaitsTest, AnEngineThatNobodyUsesLooksSeldom) {
  constexpr int kSize = 4;
  Job job(kSize);
  ExpectWorks(job);
  const auto waits = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nvcsw;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const int64_t before = waits();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(waits() - before, 20 * kSize);
}

TEST(WaitsTest, AWaitForSharedMemoryHardlyUsesTheCpu) {
  const auto transports =
      MakeTransports(Medium::kSharedMemory, 2, kSmallRingBytes,
                     /*timeout_seconds=*/1);
  int64_t never = 0;
  const Bytes bytes(reinterpret_cast<std::byte*>(&never), sizeof(never));
  const double begin = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
  EXPECT_EQ(transports[0]->Wait(transports[0]->StartRecv(1, bytes)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(CpuSeconds(CLOCK_THREAD_CPUTIME_ID) - begin, 0.3);
}

}  // namespace
}  // namespace tfring
