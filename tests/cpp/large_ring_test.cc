// Allreduce of a million elements of every dtype, with every op, on 1 to 8
// ranks: the part of ring_test.cc that would take minutes under a sanitizer.
#include <gtest/gtest.h>

#include <cstdint>

#include "tests/cpp/elements.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/ring_checks.h"

namespace tfring {
namespace {

class LargeRingTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, LargeRingTest, testing::Range(1, 9));

TEST_P(LargeRingTest, AllreduceOfEveryTypeAndOp) {
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      const SolvedAllreduce solved({dtype, op, /*count=*/1'000'003},
                                   GetParam());
      OnRanks(GetParam(), [&](Transport& transport) {
        CheckAllreduce(transport, solved, {64 << 10, 512 << 10});
      });
    }
  }
}

}  // namespace
}  // namespace tfring
