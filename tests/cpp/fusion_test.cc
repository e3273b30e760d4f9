#include "tfring_ops/engine/negotiation/fusion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tfring_ops/engine/execution/packing.h"

namespace tfring {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

MATCHER_P(Together, tensors, "") {
  return arg.place == Pack::Place::kStage && arg.tensors == tensors;
}
MATCHER_P(WhereTheyLie, tensors, "") {
  return arg.place == Pack::Place::kTensors && arg.tensors == tensors;
}

using Tensors = std::vector<int>;
constexpr int64_t kLarge = kStagedBytes + 1;

TEST(PlanPacksTest, FillsPacksInOrderUpToTheThreshold) {
  EXPECT_THAT(PlanPacks({40, 40, 20, 50, 30, 60}, 100),
              ElementsAre(Together(Tensors{0, 1, 2}), Together(Tensors{3, 4}),
                          WhereTheyLie(Tensors{5})));
  EXPECT_THAT(
      PlanPacks({kLarge, kLarge, kLarge, 3 * kLarge, kLarge}, 2 * kLarge),
      ElementsAre(WhereTheyLie(Tensors{0, 1}), WhereTheyLie(Tensors{2}),
                  WhereTheyLie(Tensors{3}), WhereTheyLie(Tensors{4})));
}

TEST(PlanPacksTest, AThresholdOfZeroKeepsEveryTensorAlone) {
  EXPECT_THAT(PlanPacks({4, kLarge, 4}, 0),
              ElementsAre(WhereTheyLie(Tensors{1}), WhereTheyLie(Tensors{0}),
                          WhereTheyLie(Tensors{2})));
}

TEST(PlanPacksTest, ATensorBeyondTheThresholdTravelsAlone) {
  EXPECT_THAT(PlanPacks({4, 400, 4}, 100),
              ElementsAre(WhereTheyLie(Tensors{0}), WhereTheyLie(Tensors{1}),
                          WhereTheyLie(Tensors{2})));
}

TEST(PlanPacksTest, LeavesOutEmptyTensors) {
  EXPECT_THAT(PlanPacks({0, 4, 0, 4, 0}, 100),
              ElementsAre(Together(Tensors{1, 3})));
  EXPECT_THAT(PlanPacks({0, 0}, 100), IsEmpty());
  EXPECT_THAT(PlanPacks({}, 100), IsEmpty());
}

TEST(PlanPacksTest, LargeTensorsDoNotPartTheSmallOnesAroundThem) {
  EXPECT_THAT(
      PlanPacks({4, kLarge, 4, kStagedBytes, kLarge}, 64 << 20),
      ElementsAre(WhereTheyLie(Tensors{1, 4}), Together(Tensors{0, 2, 3})));
}

TEST(FusibleTest, WantsAllreducesThatDifferInTensorsAlone) {
  CollectiveRequest a;
  a.name = "a";
  a.tensors = {{"a", {3}}};
  CollectiveRequest b = a;
  b.name = "b";
  b.tensors = {{"b", {4, 4}}, {"c", {}}};
  EXPECT_TRUE(Fusible(a, b));

  using Change = void (*)(CollectiveRequest&);
  for (const Change change :
       {Change([](auto& request) { request.dtype = DataType::kFloat64; }),
        Change([](auto& request) { request.wire_dtype = DataType::kFloat16; }),
        Change([](auto& request) { request.device = 0; }),
        Change([](auto& request) { request.op = ReduceOp::kMax; }),
        Change([](auto& request) { request.prescale_factor = 2; }),
        Change([](auto& request) { request.postscale_factor = 2; }),
        Change([](auto& request) {
          request.kind = CollectiveKind::kBroadcast;
        })}) {
    CollectiveRequest changed = b;
    change(changed);
    EXPECT_FALSE(Fusible(a, changed) || Fusible(changed, a));
  }
  a.kind = b.kind = CollectiveKind::kAllgather;
  EXPECT_FALSE(Fusible(a, b));
}

}  // namespace
}  // namespace tfring
