// Every kernel variant that this CPU can run gives the bits of the baseline
// variant.  kernels_test.cc tests the values; this file only compares variants.
#include "tfring_ops/kernels/cpu_variants.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/interesting_elements.h"
#include "tfring_ops/base/types.h"

namespace tfring {
namespace {

constexpr double kFactors[] = {0.0, 0.5,  1.0 / 3, 1.0 / 49, 1.5, -2.0,
                               3,   1e30, -1e300,  1e-300,   NAN, INFINITY};

class CpuVariantsTest : public testing::TestWithParam<DataType> {
 protected:
  // Each against the last, which is the baseline.
  static std::vector<const CpuVariant*> Others() {
    std::vector<const CpuVariant*> variants = SupportedCpuVariants();
    variants.pop_back();
    return variants;
  }

  static void ExpectReduceToTheSame(const std::byte* a, const std::byte* b,
                                    int64_t count, ReduceOp op, bool any_nan) {
    const DataType dtype = GetParam();
    Elements expected(count * SizeInBytes(dtype));
    kCpuBaseline.reduce(expected.data(), a, b, count, dtype, op);
    for (const CpuVariant* variant : Others()) {
      SCOPED_TRACE(std::string(variant->name) + ", " + Name(op));
      Elements actual(expected.size());
      variant->reduce(actual.data(), a, b, count, dtype, op);
      ExpectSameBits(dtype, actual.data(), expected.data(), count, any_nan);
    }
  }
};

std::string NameOf(const testing::TestParamInfo<DataType>& info) {
  return Name(info.param);
}
INSTANTIATE_TEST_SUITE_P(AllTypes, CpuVariantsTest,
                         testing::ValuesIn(kDataTypes), NameOf);

TEST_P(CpuVariantsTest, ReduceToTheSameBits) {
  constexpr int64_t kCount = 5000;
  const DataType dtype = GetParam();
  const Elements a = InterestingElements(dtype, kCount, 0);
  const Elements b = InterestingElements(dtype, kCount, 1);
  for (const ReduceOp op : kReduceOps) {
    // A CPU takes the first of two NaN; which that is, the compiler decides.
    ExpectReduceToTheSame(a.data(), b.data(), kCount, op, /*any_nan=*/true);
  }
}

TEST_P(CpuVariantsTest, ScaleToTheSameBits) {
  constexpr int64_t kCount = 5000;
  const DataType dtype = GetParam();
  for (const double factor : kFactors) {
    const Elements data = InterestingElements(dtype, kCount, 0);
    Elements expected(data.size());
    kCpuBaseline.scale(expected.data(), data.data(), kCount, dtype, factor);
    for (const CpuVariant* variant : Others()) {
      SCOPED_TRACE(std::string(variant->name) + ", " + std::to_string(factor));
      Elements actual = data;
      variant->scale(actual.data(), actual.data(), kCount, dtype, factor);
      ExpectSameBits(dtype, actual.data(), expected.data(), kCount, true);
    }
  }
}

TEST_P(CpuVariantsTest, ConvertToTheSameBits) {
  const DataType to = GetParam();
  for (const DataType from : kDataTypes) {
    if (from == to || !(CanTravelAs(from, to) || CanTravelAs(to, from))) {
      continue;
    }
    // Every count has another rest.
    for (const int64_t count : {0, 1, 15, 64, 1039, 5000}) {
      const Elements data = InterestingElements(from, count, 0);
      Elements expected((count + 1) * SizeInBytes(to));
      Elements actual = expected;
      kCpuBaseline.convert(expected.data(), to, data.data(), from, count);
      for (const CpuVariant* variant : Others()) {
        SCOPED_TRACE(std::string(variant->name) + ", from " + Name(from));
        variant->convert(actual.data(), to, data.data(), from, count);
        ExpectSameBits(to, actual.data(), expected.data(), count + 1, true);
      }
    }
  }
}

// Tests every count up to a few vectors, at every offset from vector alignment.
// No byte outside the range is touched.
TEST_P(CpuVariantsTest, AnyCountAndAlignment) {
  constexpr int64_t kMost = 150;
  const DataType dtype = GetParam();
  const int64_t size = SizeInBytes(dtype);
  const Elements a = InterestingElements(dtype, kMost + 64, 0);
  const Elements b = InterestingElements(dtype, kMost + 64, 1);
  for (const CpuVariant* variant : Others()) {
    SCOPED_TRACE(variant->name);
    for (int64_t count = 0; count <= kMost; ++count) {
      const int64_t shift = count % (64 / size);
      Elements expected(a.size(), std::byte{0x5a});
      Elements actual = expected;
      const auto at = [&](Elements& elements) {
        return elements.data() + shift * size;
      };
      kCpuBaseline.reduce(at(expected), a.data(), b.data() + size, count, dtype,
                          ReduceOp::kSum);
      variant->reduce(at(actual), a.data(), b.data() + size, count, dtype,
                      ReduceOp::kSum);
      kCpuBaseline.scale(at(expected), at(expected), count, dtype, 0.3);
      variant->scale(at(actual), at(actual), count, dtype, 0.3);
      ExpectSameBits(dtype, actual.data(), expected.data(), kMost + 64, true);
    }
  }
}

// Both types whole: the maximum of a number and itself widens and rounds it;
// and products of all pairs of some come near every point where rounding
// changes its mind.
TEST_P(CpuVariantsTest, ConvertAndRoundEveryHalf) {
  if (SizeInBytes(GetParam()) != 2) return;
  constexpr int64_t kCount = 1 << 16;
  std::vector<uint16_t> all(kCount);
  for (int64_t i = 0; i < kCount; ++i) all[i] = static_cast<uint16_t>(i);
  const auto* const data = reinterpret_cast<const std::byte*>(all.data());
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kSum}) {
    // Here the two NaN are one, and their payload must be right too.
    ExpectReduceToTheSame(data, data, kCount, op, /*any_nan=*/false);
  }
  for (int64_t i = 0; i < 64; ++i) {
    const std::vector<uint16_t> one(kCount, static_cast<uint16_t>(i * 1027));
    const auto* const other = reinterpret_cast<const std::byte*>(one.data());
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
      ExpectReduceToTheSame(data, other, kCount, op, /*any_nan=*/true);
    }
  }
}

// A fingerprint of all that the tests above compare with.  x86-64 and aarch64
// have given this number.
TEST(CpuBaselineTest, GivesTheSameBitsOnEveryArchitecture) {
  constexpr int64_t kCount = 1000;
  uint64_t fingerprint = 14695981039346656037u;  // FNV-1a
  const auto add = [&](DataType dtype, const Elements& elements) {
    VisitType(dtype, [&](auto type) {
      using T = decltype(type);
      for (size_t i = 0; i < elements.size(); i += sizeof(T)) {
        T value = {};
        if constexpr (kIsFloat<T>) {
          std::memcpy(static_cast<void*>(&value), &elements[i], sizeof(T));
        }
        for (size_t j = 0; j < sizeof(T); ++j) {
          const auto byte = static_cast<uint8_t>(elements[i + j]);
          fingerprint ^= IsNan(value) ? 0xff : byte;
          fingerprint *= 1099511628211u;
        }
      }
    });
  };
  for (const DataType dtype : kDataTypes) {
    Elements a = InterestingElements(dtype, kCount, 0);
    const Elements b = InterestingElements(dtype, kCount, 1);
    Elements result(a.size());
    for (const ReduceOp op : kReduceOps) {
      kCpuBaseline.reduce(result.data(), a.data(), b.data(), kCount, dtype, op);
      add(dtype, result);
    }
    for (const double factor : kFactors) {
      kCpuBaseline.scale(result.data(), a.data(), kCount, dtype, factor);
      add(dtype, result);
    }
  }
  EXPECT_EQ(fingerprint, 7925098250633114748u);
}

TEST(SupportedCpuVariantsTest, TheBaselineIsTheLast) {
  const auto variants = SupportedCpuVariants();
  ASSERT_FALSE(variants.empty());
  EXPECT_EQ(variants.back(), &kCpuBaseline);
}

}  // namespace
}  // namespace tfring
