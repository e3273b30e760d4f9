// Tiers, the threads that copy, and plans, without TensorFlow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
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
using testing::HasSubstr;

TEST(CopierTest, CopiesEachByteOnceAndIsDoneOnce) {
  const int64_t sizes[] = {1, 4095, (2 << 20) + 1, 9 << 20};
  std::vector<std::string> sources;
  std::vector<std::string> targets;
  for (const int64_t size : sizes) {
    sources.push_back(std::string(size, static_cast<char>('a' + size % 20)));
    targets.push_back(std::string(size, '\0'));
  }
  std::atomic<int> done{0};
  std::atomic<int64_t> copied{0};
  {
    Copier copier(3);
    for (int i = 0; i < 4; ++i) {
      copier.Submit(
          i % 2 == 0 ? Copier::Direction::kOut : Copier::Direction::kBack,
          sizes[i],
          [&, i](int64_t offset, int64_t bytes) {
            std::memcpy(&targets[i][offset], &sources[i][offset], bytes);
            copied += bytes;
            return absl::OkStatus();
          },
          [&](const absl::Status& status, int64_t busy_ns) {
            EXPECT_TRUE(status.ok()) << status;
            EXPECT_GE(busy_ns, 0);
            ++done;
          });
    }
  }  // It ends with the copies.
  EXPECT_EQ(done, 4);
  EXPECT_EQ(copied, 1 + 4095 + (2 << 20) + 1 + (9 << 20));
  EXPECT_EQ(sources, targets);
}

TEST(CopierTest, AFailureIsToldOnceAndStopsTheCopy) {
  std::atomic<int> pieces{0};
  std::atomic<int> done{0};
  {
    Copier copier(1);
    copier.Submit(
        Copier::Direction::kOut, 100 << 20,
        [&](int64_t, int64_t) {
          return ++pieces == 3 ? absl::DataLossError("third")
                               : absl::OkStatus();
        },
        [&](const absl::Status& status, int64_t) {
          EXPECT_EQ(status.message(), "third");
          ++done;
        });
  }
  EXPECT_EQ(pieces, 3);
  EXPECT_EQ(done, 1);
}

TEST(CopierTest, CopiesBackComeFirst) {
  std::mutex mutex;
  std::vector<char> order;
  std::promise<void> started, submitted;
  {
    Copier copier(1);
    auto submit = [&](Copier::Direction direction, char name, bool waits) {
      copier.Submit(
          direction, 1,
          [&, name, waits](int64_t, int64_t) {
            if (waits) {
              started.set_value();
              submitted.get_future().wait();
            }
            std::lock_guard<std::mutex> lock(mutex);
            order.push_back(name);
            return absl::OkStatus();
          },
          [](const absl::Status&, int64_t) {});
    };
    submit(Copier::Direction::kOut, 'a', true);
    started.get_future().wait();
    submit(Copier::Direction::kOut, 'b', false);
    submit(Copier::Direction::kBack, 'c', false);
    submitted.set_value();
  }
  EXPECT_THAT(order, ElementsAre('a', 'c', 'b'));
}

// What was written is read, whatever else is in the tier.
void CheckTier(Tier& tier) {
  std::vector<std::unique_ptr<Tier::Slot>> slots;
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) {
    texts.push_back(std::string(10000 + 5000 * i, static_cast<char>('a' + i)));
    auto slot = tier.Allocate(texts[i].size());
    ASSERT_TRUE(slot.ok()) << slot.status();
    slots.push_back(*std::move(slot));
    const int64_t half = texts[i].size() / 2;
    EXPECT_TRUE(slots[i]->Write(&texts[i][0], 0, half).ok());
    EXPECT_TRUE(
        slots[i]->Write(&texts[i][half], half, texts[i].size() - half).ok());
    // Those in between are free for the next.
    if (i == 2) slots[1].reset();
  }
  for (const int i : {4, 0, 3, 2}) {
    std::string read(texts[i].size(), '\0');
    EXPECT_TRUE(slots[i]->Read(read.data(), 0, read.size()).ok());
    EXPECT_EQ(read, texts[i]);
  }
  EXPECT_GE(tier.use().in_use_bytes, 10000 + 20000 + 25000 + 30000);
  slots.clear();
  EXPECT_EQ(tier.use().in_use_bytes, 0);
}

TEST(TierTest, Host) {
  std::unique_ptr<Tier> tier = MakeHostTier();
  CheckTier(*tier);
}

std::string NewDirectory() {
  std::string directory = testing::TempDir() + "/offload_XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  return directory;
}

TEST(TierTest, Disk) {
  const std::string directory = NewDirectory();
  auto tier = MakeDiskTier(directory);
  ASSERT_TRUE(tier.ok()) << tier.status();
  CheckTier(**tier);
  // The file has no name: nothing is in the way.
  EXPECT_EQ(rmdir(directory.c_str()), 0);
}

TEST(TierTest, NoSuchDirectory) {
  const auto tier = Tier::Find("/no/such/directory");
  EXPECT_THAT(tier.status().message(), HasSubstr("/no/such/directory"));
}

TEST(TierTest, AThousandStepsDoNotGrow) {
  const std::string directory = NewDirectory();
  auto disk = MakeDiskTier(directory);
  ASSERT_TRUE(disk.ok());
  std::unique_ptr<Tier> host = MakeHostTier();
  for (Tier* tier : {host.get(), disk->get()}) CheckTierDoesNotGrow(*tier);
  EXPECT_EQ(rmdir(directory.c_str()), 0);
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

TEST(PlanTest, ADiskIsNotForGpus) {
  PlanOptions options;
  options.directory = NewDirectory();
  auto disk = MakeDiskTier(options.directory);
  ASSERT_TRUE(disk.ok());
  Plan plan(options, disk->get());
  const auto tier = plan.TierOfGpu(0);
  EXPECT_EQ(tier.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(tier.status().message(), HasSubstr("Use tier=\"host\""));
  EXPECT_EQ(rmdir(options.directory.c_str()), 0);
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
  std::unique_ptr<Tier> tier = MakeHostTier();
  const auto plan = std::make_shared<Plan>(options, tier.get());
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
  static Tier* const tier = MakeHostTier().release();
  PlanOptions options;
  options.items = 2;
  options.budget_bytes = budget_bytes;
  return std::make_shared<Plan>(options, tier);
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
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(*plan, *Plan::FindOrMake(options));
  EXPECT_EQ(*plan, Plan::Find(options.id));
  // A graph from another process.
  options.items = 7;
  EXPECT_NE(*plan, *Plan::FindOrMake(options));
}

}  // namespace
}  // namespace tfring
