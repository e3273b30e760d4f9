// Checks that hold for every tier.
#ifndef TESTS_CPP_TIER_CHECKS_H_
#define TESTS_CPP_TIER_CHECKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tfring_ops/offload/tier.h"

namespace tfring {

// Runs a thousand steps and passes each slot to `check`.
inline void CheckTierDoesNotGrow(
    Tier& tier,
    const std::function<void(Tier::Slot&)>& check = [](Tier::Slot&) {}) {
  constexpr int64_t kBytes = 4096;
  for (int step = 0; step < 1000; ++step) {
    std::vector<std::unique_ptr<Tier::Slot>> slots;
    // The last batch of an epoch is smaller.
    const int64_t rows = step % 10 == 9 ? 3 : 8;
    for (int64_t i = 1; i <= 6; ++i) {
      auto slot = tier.Allocate(rows * i * kBytes);
      ASSERT_TRUE(slot.ok()) << slot.status();
      slots.push_back(*std::move(slot));
      check(*slots.back());
    }
    while (!slots.empty()) slots.pop_back();
  }
  EXPECT_EQ(tier.use().in_use_bytes, 0);
  EXPECT_EQ(tier.use().peak_bytes, 8 * 21 * kBytes);
  EXPECT_LE(tier.use().reserved_bytes, tier.use().peak_bytes);
}

}  // namespace tfring

#endif  // TESTS_CPP_TIER_CHECKS_H_
