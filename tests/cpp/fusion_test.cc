#include "tfring_ops/engine/fusion.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tfring {
namespace {

using Packs = std::vector<std::vector<int>>;

TEST(PlanPacksTest, FillsPacksInOrderUpToTheThreshold) {
  EXPECT_EQ(PlanPacks({40, 40, 20, 50, 60}, 100), (Packs{{0, 1, 2}, {3}, {4}}));
}

TEST(PlanPacksTest, AThresholdOfZeroKeepsEveryTensorAlone) {
  EXPECT_EQ(PlanPacks({4, 4, 4}, 0), (Packs{{0}, {1}, {2}}));
}

TEST(PlanPacksTest, ATensorBeyondTheThresholdTravelsAlone) {
  EXPECT_EQ(PlanPacks({4, 400, 4}, 100), (Packs{{0}, {1}, {2}}));
}

TEST(PlanPacksTest, LeavesOutEmptyTensors) {
  EXPECT_EQ(PlanPacks({0, 4, 0, 4, 0}, 100), (Packs{{1, 3}}));
  EXPECT_EQ(PlanPacks({0, 0}, 100), Packs{});
  EXPECT_EQ(PlanPacks({}, 100), Packs{});
}

TEST(PlanPacksTest, ALargeTensorDoesNotPartTheSmallOnesAroundIt) {
  EXPECT_EQ(PlanPacks({4, kPackLimitBytes + 1, 4}, 64 << 20),
            (Packs{{1}, {0, 2}}));
  EXPECT_EQ(PlanPacks({4, kPackLimitBytes, 4}, 64 << 20), (Packs{{0, 1, 2}}));
}

TEST(FusibleTest, WantsAllreducesThatDifferInTensorsAlone) {
  CollectiveRequest a;
  a.name = "a";
  a.tensors = {{"a", {3}}};
  CollectiveRequest b = a;
  b.name = "b";
  b.tensors = {{"b", {4, 4}}, {"c", {}}};
  EXPECT_TRUE(Fusible(a, b));

  const auto fusible_after = [&](auto change) {
    CollectiveRequest changed = b;
    change(changed);
    return Fusible(a, changed) || Fusible(changed, a);
  };
  EXPECT_FALSE(fusible_after(
      [](CollectiveRequest& request) { request.dtype = DataType::kFloat64; }));
  EXPECT_FALSE(
      fusible_after([](CollectiveRequest& request) { request.device = 0; }));
  EXPECT_FALSE(fusible_after(
      [](CollectiveRequest& request) { request.op = ReduceOp::kMax; }));
  EXPECT_FALSE(fusible_after(
      [](CollectiveRequest& request) { request.prescale_factor = 2; }));
  EXPECT_FALSE(fusible_after(
      [](CollectiveRequest& request) { request.postscale_factor = 2; }));
  EXPECT_FALSE(fusible_after([](CollectiveRequest& request) {
    request.kind = CollectiveKind::kBroadcast;
  }));
  a.kind = b.kind = CollectiveKind::kAllgather;
  EXPECT_FALSE(Fusible(a, b));
}

}  // namespace
}  // namespace tfring
