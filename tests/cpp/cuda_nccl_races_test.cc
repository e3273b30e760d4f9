// The fakes show it when the order of streams is lost around NCCL: here the
// driver forgets to wait.  Races on purpose, and so not under TSan.
#include <gtest/gtest.h>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_engines.h"

namespace tfring {
namespace {

TEST(CudaNcclRacesTest, AWaitThatIsLeftOutIsSeen) {
  for (const bool waits : {true, false}) {
    int wrong = 0;
    for (int i = 0; i < 3; ++i) {
      const WithFakeCuda hold(&FakeOptions::held, 1);
      const WithFakeCuda forget(&FakeOptions::ignore_waits, waits ? 0 : 1);
      for (const NcclOutcome& outcome : AllreduceByNccl(2)) {
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        wrong += outcome.is_right ? 0 : 1;
      }
    }
    EXPECT_EQ(wrong == 0, waits);
  }
}

}  // namespace
}  // namespace tfring
