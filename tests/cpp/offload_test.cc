// Tiers, the threads that copy, and plans, without TensorFlow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/tier_checks.h"
#include "tfring_ops/offload/copier.h"
#include "tfring_ops/offload/plan.h"
#include "tfring_ops/offload/planner.h"
#include "tfring_ops/offload/tier.h"

namespace tfring {
namespace {

using testing::ElementsAre;

TEST(CopierTest, CopiesAllAndIsDoneOnce) {
  const int64_t sizes[] = {1, 4095, (2 << 20) + 1, 9 << 20};
  std::vector<std::string> sources;
  std::vector<std::string> targets;
  for (const int64_t size : sizes) {
    sources.push_back(std::string(size, static_cast<char>('a' + size % 20)));
    targets.push_back(std::string(size, '\0'));
  }
  std::atomic<int> done{0};
  {
    Copier copier(3);
    for (int i = 0; i < 4; ++i) {
      copier.Submit(
          i % 2 == 0 ? Copier::Direction::kOut : Copier::Direction::kBack,
          sources[i].data(), targets[i].data(), sizes[i],
          [&](const absl::Status& status) {
            EXPECT_TRUE(status.ok()) << status;
            ++done;
          });
    }
  }  // The destructor waits for the copies.
  EXPECT_EQ(done, 4);
  EXPECT_EQ(sources, targets);
}

TEST(CopierTest, CopiesBackComeFirst) {
  std::vector<char> order;
  std::promise<void> started, submitted;
  {
    Copier copier(1);
    const char from = 'x';
    char to = ' ';
    auto submit = [&](Copier::Direction direction, char name, bool waits) {
      copier.Submit(direction, &from, &to, 1,
                    [&, name, waits](const absl::Status&) {
                      if (waits) {
                        started.set_value();
                        submitted.get_future().wait();
                      }
                      order.push_back(name);
                    });
    };
    submit(Copier::Direction::kOut, 'a', true);
    started.get_future().wait();
    submit(Copier::Direction::kOut, 'b', false);
    submit(Copier::Direction::kBack, 'c', false);
    submitted.set_value();
  }
  EXPECT_THAT(order, ElementsAre('a', 'c', 'b'));
}

// A slot keeps its bytes while more slots are allocated and freed.
TEST(TierTest, SlotsHaveMemoryOfTheirOwn) {
  const std::unique_ptr<Tier> tier = Tier::MakePageable();
  std::vector<std::unique_ptr<Tier::Slot>> slots;
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) {
    texts.push_back(std::string(10000 + 5000 * i, static_cast<char>('a' + i)));
    auto slot = tier->Allocate(texts[i].size());
    ASSERT_TRUE(slot.ok()) << slot.status();
    slots.push_back(*std::move(slot));
    std::memcpy(slots[i]->memory(), texts[i].data(), texts[i].size());
    // The freed slot in between is free for the next allocation.
    if (i == 2) slots[1].reset();
  }
  for (const int i : {4, 0, 3, 2}) {
    EXPECT_EQ(std::string(slots[i]->memory(), texts[i].size()), texts[i]);
  }
  EXPECT_GE(tier->use().in_use_bytes, 10000 + 20000 + 25000 + 30000);
  slots.clear();
  EXPECT_EQ(tier->use().in_use_bytes, 0);
}

TEST(TierTest, AThousandStepsDoNotGrow) {
  CheckTierDoesNotGrow(*Tier::MakePageable());
}

TEST(PlannerTest, WhatIsBackFirstStaysFirst) {
  const std::vector<FeatureMap> three = {{10, 2}, {10, 1}, {10, 0}};
  EXPECT_THAT(ChooseToKeep(three, 9), ElementsAre(false, false, false));
  EXPECT_THAT(ChooseToKeep(three, 10), ElementsAre(false, false, true));
  EXPECT_THAT(ChooseToKeep(three, 29), ElementsAre(false, true, true));
  EXPECT_THAT(ChooseToKeep(three, 30), ElementsAre(true, true, true));
}

TEST(PlannerTest, WhatIsLargeLeavesRoomForOthers) {
  EXPECT_THAT(ChooseToKeep({{10, 2}, {1000, 1}, {10, 0}}, 25),
              ElementsAre(true, false, true));
}

TEST(PlannerTest, WhatIsNotNeededBackIsNotKept) {
  EXPECT_THAT(ChooseToKeep({{10, 1}, {10, 0}, {10, -1}}, 1000),
              ElementsAre(true, true, false));
}

int64_t NoCount() { return -1; }

// A step with two feature maps.  Returns which were moved.
std::vector<bool> RunStep(Plan& plan, int64_t bytes) {
  const std::shared_ptr<Execution> execution = plan.Begin(NoCount);
  std::vector<bool> moved;
  for (const int i : {0, 1}) moved.push_back(execution->Moves(i, bytes));
  for (const int i : {1, 0}) execution->NeedsBack(i);
  return moved;
}

TEST(PlanTest, AllIsMovedWithoutABudget) {
  PlanOptions options;
  options.items = 3;
  options.min_bytes = 1000;
  const auto plan = std::make_shared<Plan>(options);
  for (int step = 1; step <= 4; ++step) {
    {
      const std::shared_ptr<Execution> execution = plan->Begin(NoCount);
      EXPECT_TRUE(execution->Moves(0, 1000));
      EXPECT_FALSE(execution->Moves(1, 999));
      EXPECT_FALSE(execution->Moves(2, 0));
      for (const int i : {2, 1, 0}) execution->NeedsBack(i);
      EXPECT_EQ(plan->statistics().steps, step - 1);
    }
    EXPECT_EQ(plan->statistics().steps, step);
    EXPECT_EQ(plan->statistics().moved, 1);
    EXPECT_EQ(plan->statistics().moved_bytes, 1000);
    EXPECT_EQ(plan->statistics().small, 2);
  }
}

// A plan for two feature maps.
std::shared_ptr<Plan> MakePlan(int64_t budget_bytes) {
  PlanOptions options;
  options.items = 2;
  options.budget_bytes = budget_bytes;
  return std::make_shared<Plan>(options);
}

TEST(PlanTest, ABudgetIsPlannedFromTheFirstStep) {
  const std::shared_ptr<Plan> plan = MakePlan(15);
  EXPECT_THAT(RunStep(*plan, 10), ElementsAre(true, true));
  EXPECT_THAT(RunStep(*plan, 10), ElementsAre(true, false));
  EXPECT_EQ(plan->statistics().kept, 1);
  EXPECT_EQ(plan->statistics().kept_bytes, 10);
}

TEST(PlanTest, ALargerBatchIsWithinTheBudgetAndIsForgotten) {
  const std::shared_ptr<Plan> plan = MakePlan(20);
  RunStep(*plan, 10);
  EXPECT_THAT(RunStep(*plan, 10), ElementsAre(false, false));
  EXPECT_THAT(RunStep(*plan, 15), ElementsAre(false, true));
  EXPECT_THAT(RunStep(*plan, 15), ElementsAre(true, false));
  RunStep(*plan, 10);
  EXPECT_THAT(RunStep(*plan, 10), ElementsAre(false, false));
}

TEST(PlanTest, WhatAFailedStepDidNotNeedBackIsPlannedAsBefore) {
  const std::shared_ptr<Plan> plan = MakePlan(20);
  RunStep(*plan, 10);
  EXPECT_TRUE(plan->Begin(NoCount)->Moves(0, 1000));
  EXPECT_THAT(RunStep(*plan, 10), ElementsAre(false, false));
}

TEST(PlanTest, TheMeterIsReadWhenAStepHasEnded) {
  const std::shared_ptr<Plan> plan = MakePlan(1);
  int64_t peak_bytes = 7;
  {
    const auto execution = plan->Begin([&] { return peak_bytes; });
    peak_bytes = 8;
  }
  EXPECT_EQ(plan->statistics().peak_bytes, 8);
}

TEST(PlanTest, OnePlanForEachId) {
  PlanOptions options;
  options.id = 12345;
  EXPECT_EQ(Plan::Find(options.id), nullptr);
  const auto plan = Plan::FindOrMake(options);
  EXPECT_EQ(plan, Plan::FindOrMake(options));
  EXPECT_EQ(plan, Plan::Find(options.id));
  // A graph from another process may have this number with other items.
  options.items = 7;
  EXPECT_NE(plan, Plan::FindOrMake(options));
}

}  // namespace
}  // namespace tfring
