// If a transport cannot cancel messages on the wire, the engine keeps their
// memory.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/transport/forwarding.h"

// AddressSanitizer would report the kept memory as a leak.
extern "C" __attribute__((visibility("default"))) const char*
__asan_default_options() {
  return "detect_leaks=0";
}

namespace tfring {
namespace {

class AbandoningTransport final : public ForwardingTransport {
 public:
  explicit AbandoningTransport(std::unique_ptr<Transport> inner)
      : ForwardingTransport(std::move(inner)) {}
  bool HasAbandoned() const override { return true; }
};

class AbandonedMemoryTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Abandons, AbandonedMemoryTest, testing::Bool());

TEST_P(AbandonedMemoryTest, IsKeptIfItIsOnTheWire) {
  constexpr int kSize = 2;
  auto data = MakeInProcessTransports(kSize);
  if (GetParam()) {
    for (auto& transport : data) {
      transport = std::make_unique<AbandoningTransport>(std::move(transport));
    }
  }
  const Entries before = MakeEntries(kSize, "before", 10);
  const Entries failing = MakeEntries(kSize, "failing", 10);
  std::atomic<int> kept{0}, kept_of_others{0};
  for (int rank = 0; rank < kSize; ++rank) {
    before[rank]->callbacks.keep_memory = [&] { ++kept_of_others; };
    failing[rank]->callbacks.keep_memory = [&, rank] {
      EXPECT_EQ(failing[rank]->outcome.calls(), 0);
      ++kept;
    };
  }
  failing[1]->callbacks.on_start = [](void*) {
    return absl::InternalError("no");
  };
  FloatEntry never("never", {1});
  never.callbacks.keep_memory = [&] { ++kept_of_others; };
  Job job(MakeInProcessTransports(kSize), std::move(data), Job::ShortOptions());
  job.Submit(before);
  ExpectSums(before);
  never.SubmitTo(job.engine(0));
  job.Submit(failing);
  for (const auto& entry : failing) {
    EXPECT_FALSE(entry->outcome.Wait().ok());
    EXPECT_EQ(entry->outcome.calls(), 1);
  }
  EXPECT_FALSE(never.outcome.Wait().ok());
  job.Shutdown();
  // Rank 0 may hear of the failure before it begins.
  EXPECT_GE(kept, GetParam() ? 1 : 0);
  EXPECT_LE(kept, GetParam() ? kSize : 0);
  EXPECT_EQ(kept_of_others, 0);
}

}  // namespace
}  // namespace tfring
