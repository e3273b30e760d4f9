// The same values give the same bits, whatever the ranks do at the same time.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

constexpr int kSize = 3;  // two floats have the same sum in either order
constexpr int kCount = 1000;

// Floats with a sum over the ranks that depends on the order of the additions.
std::vector<float> Values(int rank, unsigned seed, int64_t count = kCount) {
  std::mt19937 generator(10 * seed + rank);
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = any(generator);
  return values;
}

std::vector<float> Joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <typename ValuesOfRank>
Entries MakeEntriesOf(const std::string& name, ValuesOfRank values_of_rank) {
  Entries entries;
  for (int rank = 0; rank < kSize; ++rank) {
    entries.push_back(std::make_unique<FloatEntry>(name, values_of_rank(rank)));
  }
  return entries;
}

Entries Some(const std::string& name, unsigned seed) {
  return MakeEntriesOf(name, [&](int rank) { return Values(rank, seed); });
}

std::vector<float> SumOf(const Entries& entries) {
  for (const auto& entry : entries) EXPECT_TRUE(entry->outcome.Wait().ok());
  return entries[0]->result();
}

TEST(DeterminismTest, TheBitsOfASumDependOnWhatElseIsInTheMessage) {
  Options options = Job::ShortOptions();
  options.allreduce = AllreduceAlgorithm::kRing;
  Job job(kSize, options);
  const Entries alone = Some("a", 1);
  job.Submit(alone);
  const Entries both = MakeEntriesOf("both", [](int rank) {
    return Joined(Values(rank, 1), Values(rank, 2));
  });
  job.Submit(both);
  std::vector<float> first = SumOf(both);
  first.resize(kCount);
  EXPECT_FALSE(first == SumOf(alone));
}

TEST(DeterminismTest, RequestsThatAreReadyTogetherAreKeptApart) {
  Options options = Job::ShortOptions();
  options.fusion_threshold_bytes = 64 << 20;
  options.deterministic = true;
  Job job(kSize, options);
  std::vector<std::vector<float>> alone;
  for (const unsigned seed : {1, 2}) {
    const Entries entries = Some("alone", seed);
    job.Submit(entries);
    alone.push_back(SumOf(entries));
  }
  for (int round = 0; round < 30; ++round) {
    const Entries a = Some("a", 1);
    const Entries b = Some("b", 2);
    job.Submit(a);
    job.Submit(b);
    EXPECT_TRUE(SumOf(a) == alone[0]) << "round " << round;
    EXPECT_TRUE(SumOf(b) == alone[1]) << "round " << round;
  }
}

}  // namespace
}  // namespace tfring
