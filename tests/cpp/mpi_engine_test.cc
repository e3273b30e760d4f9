// Tests of the engine over MPI and shared memory that the in-process transport
// cannot run.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/faulty_transport.h"
#include "tests/cpp/mpi_world.h"

namespace tfring {
namespace {

class MpiEngineTest : public testing::TestWithParam<SharedMemory> {
 protected:
  // Rank 0's data channel fails at its `failing_operation`-th operation, if
  // that is not 0.
  void Start(int64_t failing_operation = 0,
             const Options& options = Job::ShortOptions()) {
    ProcessSet process_set;
    process_set.control = MakeWorldTransport(GetParam());
    process_set.data = MakeWorldTransport(GetParam());
    if (failing_operation != 0 && process_set.data->rank() == 0) {
      process_set.data =
          MakeFaultyTransport(std::move(process_set.data), failing_operation);
    }
    engine_ =
        Engine::Start(options, std::move(process_set), CpuKernels()).value();
  }
  void TearDown() override {
    engine_.reset();
    MPI_Barrier(MPI_COMM_WORLD);
  }

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }

  std::unique_ptr<FloatEntry> MakeEntry(const std::string& name,
                                        size_t count) const {
    return std::make_unique<FloatEntry>(
        name, std::vector<float>(count, static_cast<float>(rank() + 1)));
  }
  void ExpectSum(FloatEntry& entry) const {
    const absl::Status status = entry.outcome.Wait();
    EXPECT_TRUE(status.ok()) << status;
    const auto sum = static_cast<float>(size() * (size() + 1) / 2);
    EXPECT_EQ(entry.result(), std::vector<float>(entry.result().size(), sum));
  }

  // Expects a collective to fail by the fault, which ends the engine.
  void ExpectFault(size_t count) {
    if (size() == 1) return;
    absl::Status status;
    while (status.ok()) {
      const auto entry = MakeEntry("doomed", count);
      entry->SubmitTo(*engine_);
      status = entry->outcome.Wait();
      EXPECT_EQ(entry->outcome.calls(), 1);
    }
    EXPECT_EQ(status, absl::UnavailableError("the wire was cut"));
    const auto later = MakeEntry("later", 1);
    later->SubmitTo(*engine_);
    EXPECT_EQ(later->outcome.calls(), 1);
    EXPECT_EQ(later->outcome.Wait(), status);
    engine_.reset();
    MPI_Barrier(MPI_COMM_WORLD);
  }

  std::unique_ptr<Engine> engine_;
};
INSTANTIATE_TEST_SUITE_P(Media, MpiEngineTest,
                         testing::Values(SharedMemory::kNever,
                                         SharedMemory::kWithinNodes));

TEST_P(MpiEngineTest, EveryRankMaySubmitInAnOrderOfItsOwn) {
  constexpr int kCount = 41;
  Start();
  std::vector<std::unique_ptr<FloatEntry>> entries;
  for (int i = 0; i < kCount; ++i) {
    entries.push_back(MakeEntry("t" + std::to_string(i), 1 + 5000 * i));
  }
  for (int i = 0; i < kCount; ++i) {
    entries[(i * (7 + rank()) + rank()) % kCount]->SubmitTo(*engine_);
  }
  for (const auto& entry : entries) ExpectSum(*entry);
}

// The name is longer than the eager size of any MPI.
TEST_P(MpiEngineTest, NamesMayBeLong) {
  Start();
  const auto entry = MakeEntry(std::string(1 << 20, 'x'), 10);
  entry->SubmitTo(*engine_);
  ExpectSum(*entry);
}

TEST_P(MpiEngineTest, AFaultEndsEveryRank) {
  // 80 kB travel as eager messages.
  for (const int64_t failing_operation : {1, 2, 50}) {
    Start(failing_operation);
    ExpectFault(20'000);
  }
  // 8 MB in segments of the default size need a rendezvous.
  for (const int64_t failing_operation : {2, 9}) {
    Start(failing_operation, Options());
    ExpectFault(2'000'000);
  }
}

TEST_P(MpiEngineTest, OneRanksShutdownEndsTheOthers) {
  Start();
  if (size() == 1) return;
  if (rank() == size() - 1) return;
  const auto entry = MakeEntry("never", 1);
  entry->SubmitTo(*engine_);
  EXPECT_EQ(entry->outcome.Wait().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tfring
