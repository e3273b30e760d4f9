// Adasum on 1 to 8 ranks, in a ring's place and through the engine.
#include "tfring_ops/algorithms/pairwise/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/kernels/adasum.h"

namespace tfring {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Combined(const Vector& a, const Vector& b) {
  const double of_a = Dot(a, a) == 0 ? 1 : 1 - Dot(a, b) / (2 * Dot(a, a));
  const double of_b = Dot(b, b) == 0 ? 1 : 1 - Dot(a, b) / (2 * Dot(b, b));
  Vector result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = of_a * a[i] + of_b * b[i];
  return result;
}

// Combines the inputs as a tree, after the surplus over a power of two, and
// rounds nothing.
Vector Reference(std::vector<Vector> ranks) {
  size_t doubling = 1;
  while (2 * doubling <= ranks.size()) doubling *= 2;
  for (size_t i = 0; ranks.size() > doubling; ++i) {
    ranks[i] = Combined(ranks[i], ranks[i + 1]);
    ranks.erase(ranks.begin() + i + 1);
  }
  while (ranks.size() > 1) {
    std::vector<Vector> pairs;
    for (size_t i = 0; i < ranks.size(); i += 2) {
      pairs.push_back(Combined(ranks[i], ranks[i + 1]));
    }
    ranks = std::move(pairs);
  }
  return ranks[0];
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return static_cast<float>(value);
  }
}

Vector ToVector(DataType dtype, const Elements& elements) {
  Vector vector;
  VisitType(dtype, [&](auto type) {
    using T = decltype(type);
    const auto* typed = reinterpret_cast<const T*>(elements.data());
    for (size_t i = 0; i < elements.size() / sizeof(T); ++i) {
      vector.push_back(ToDouble(typed[i]));
    }
  });
  return vector;
}

// Returns half a unit in the last place of 1.
double Epsilon(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 0x1p-11;
    case DataType::kBfloat16:
      return 0x1p-8;
    case DataType::kFloat32:
      return 0x1p-24;
    default:
      return 0x1p-50;  // the sums of the dot products, in another order
  }
}

class AdasumTest : public testing::TestWithParam<int> {
 protected:
  // Returns the result of every rank, from `inputs`.
  static std::vector<Elements> Run(std::vector<Elements> inputs, DataType dtype,
                                   int64_t segment_bytes) {
    OnRanks(static_cast<int>(inputs.size()), [&](Transport& transport) {
      Elements& data = inputs[transport.rank()];
      Elements received(data.size());
      const HostRank host(transport, segment_bytes);
      const absl::Status status = RingAdasum(
          host.context(), data.data(), received.data(),
          static_cast<int64_t>(data.size()) / SizeInBytes(dtype), dtype);
      EXPECT_TRUE(status.ok()) << status;
    });
    return inputs;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, AdasumTest, testing::Range(1, 9));

TEST_P(AdasumTest, IsTheReferenceAndTheSameBitsOnEveryRank) {
  for (const DataType dtype : kFloatTypes) {
    for (const int64_t count : {0, 1, 7, 1000}) {
      std::vector<Elements> inputs;
      std::vector<Vector> numbers;
      for (int rank = 0; rank < GetParam(); ++rank) {
        inputs.push_back(MakeElements(dtype, count, [&](auto type, int64_t i) {
          return RandomElement<decltype(type)>(rank, i);
        }));
        numbers.push_back(ToVector(dtype, inputs.back()));
      }
      const Vector expected = Reference(numbers);
      const std::vector<Elements> results = Run(inputs, dtype, 96);
      for (const Elements& result : results) EXPECT_TRUE(result == results[0]);
      const Vector actual = ToVector(dtype, results[0]);
      ASSERT_EQ(actual.size(), expected.size());
      // Each of at most four rounds rounds numbers below 8 once.
      const double tolerance = 4 * 8 * Epsilon(dtype);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], tolerance)
            << Name(dtype) << ", element " << i << " of " << count;
      }
    }
  }
}

TEST_P(AdasumTest, OfTheSameTensorIsThatTensor) {
  for (const DataType dtype : kFloatTypes) {
    const Elements same = MakeElements(dtype, 100, [](auto type, int64_t i) {
      return RandomElement<decltype(type)>(0, i);
    });
    const std::vector<Elements> inputs(GetParam(), same);
    for (const Elements& result : Run(inputs, dtype, 1000)) {
      EXPECT_TRUE(result == same) << Name(dtype);
    }
  }
}

TEST_P(AdasumTest, OfOrthogonalTensorsIsTheirSum) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < GetParam(); ++rank) {
    inputs.push_back(
        MakeElements(DataType::kFloat32, 8, [&](auto type, int64_t i) {
          using T = decltype(type);
          return i == rank ? T(rank + 1.0f) : T(0.0f);
        }));
  }
  Vector expected(8);
  for (int rank = 0; rank < GetParam(); ++rank) expected[rank] = rank + 1;
  for (const Elements& result : Run(inputs, DataType::kFloat32, 1000)) {
    EXPECT_EQ(ToVector(DataType::kFloat32, result), expected);
  }
}

TEST(AdasumKernelTest, NotANumberSpreadsToAll) {
  const float a[] = {1, std::numeric_limits<float>::infinity()};
  const float b[] = {1, 2};
  float result[2];
  Adasum(result, a, b, 2, DataType::kFloat32);
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_TRUE(std::isnan(result[1]));
}

// Two tensors, each with its own dot products, scaled before and after.
TEST(AdasumEngineTest, IsOfEachTensorByItself) {
  Job job(2);
  Entries entries;
  for (int rank = 0; rank < 2; ++rank) {
    // (1, 0) and (0, 1) are orthogonal, (3, 3) is the same twice.
    entries.push_back(std::make_unique<FloatEntry>(
        "a", rank == 0 ? std::vector<float>{1, 0} : std::vector<float>{0, 1}));
    entries.back()->request.kind = CollectiveKind::kAdasum;
    entries.back()->request.prescale_factor = 4;
    entries.back()->request.postscale_factor = 0.5;
  }
  Entries same = MakeEntries(2, "b", 2);
  for (const auto& entry : same) {
    entry->request.kind = CollectiveKind::kAdasum;
    entry->request.prescale_factor = 4;
    entry->request.postscale_factor = 0.5;
  }
  job.Submit(entries);
  job.Submit(same);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(entries[rank]->outcome.Wait().ok());
    EXPECT_EQ(entries[rank]->result(), (std::vector<float>{2, 2}));
    // 4 and 8, parallel: (1 - 32 / 32) 4 + (1 - 32 / 128) 8 = 6, halved.
    ASSERT_TRUE(same[rank]->outcome.Wait().ok());
    EXPECT_EQ(same[rank]->result(), (std::vector<float>{3, 3}));
  }
}

}  // namespace
}  // namespace tfring
