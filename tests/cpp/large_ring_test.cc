// Allreduce of a million elements, on 1 to 8 ranks: the part of ring_test.cc,
// which has every type and operation, that would take minutes under a
// sanitizer.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/cpp/elements.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/ring_checks.h"

namespace tfring {
namespace {

void CheckAllreduceOfAMillion(DataType dtype, ReduceOp op, int size,
                              Medium medium) {
  const SolvedAllreduce solved({dtype, op, /*count=*/1'000'003}, size);
  OnRanks(
      size,
      [&](Transport& transport) {
        CheckAllreduce(transport, solved, {64 << 10, 512 << 10});
      },
      medium);
}

class LargeRingTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, LargeRingTest, testing::Range(1, 9));

TEST_P(LargeRingTest, AllreduceOverEveryMedium) {
  for (const Medium medium :
       {Medium::kInProcess, Medium::kSharedMemory, Medium::kNodesOfTwo}) {
    CheckAllreduceOfAMillion(DataType::kFloat32, ReduceOp::kAverage, GetParam(),
                             medium);
    CheckAllreduceOfAMillion(DataType::kUint8, ReduceOp::kSum, GetParam(),
                             medium);
  }
}

}  // namespace
}  // namespace tfring
