// The message of every kind of mismatch.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

using Change = std::function<void(CollectiveRequest&)>;

// Returns the difference between a request of rank 0 and its changed copy on
// rank 2.
std::string DifferenceAfter(const Change& change,
                            CollectiveKind kind = CollectiveKind::kAllreduce,
                            const std::string& name = "kernel") {
  CollectiveRequest request;
  request.name = "kernel";
  request.kind = kind;
  request.tensors = {{name, {784, 128}}};
  CollectiveRequest changed = request;
  change(changed);
  return DescribeDifference(request, 0, changed, 2);
}

TEST(DifferenceTest, SaysWhatEachRankSent) {
  const std::pair<Change, std::string> cases[] = {
      {[](auto&) {}, ""},
      {[](auto& request) { request.kind = CollectiveKind::kBroadcast; },
       "collectives differ. Rank 0 sent allreduce; rank 2 sent broadcast"},
      {[](auto& request) { request.kind = CollectiveKind::kAdasum; },
       "collectives differ. Rank 0 sent allreduce; rank 2 sent adasum"},
      {[](auto& request) {
         request.kind = CollectiveKind::kBarrier;
         request.tensors.clear();
       },
       "collectives differ. Rank 0 sent allreduce; rank 2 sent barrier"},
      {[](auto& request) { request.dtype = DataType::kFloat64; },
       "dtypes differ. Rank 0 sent float32; rank 2 sent float64"},
      {[](auto& request) { request.wire_dtype = DataType::kFloat16; },
       "dtypes on the wire differ. Rank 0 sent float32; rank 2 sent float16"},
      {[](auto& request) { request.wire_dtype = request.dtype; }, ""},
      {[](auto& request) { request.device = 1; },
       "places of the tensors differ. Rank 0 sent host memory; rank 2 sent GPU "
       "memory"},
      {[](auto& request) { request.tensors[0].dims = {784}; },
       "shapes differ. Rank 0 sent float32 (784, 128); rank 2 sent float32 "
       "(784,)"},
      {[](auto& request) { request.tensors[0].dims = {}; },
       "shapes differ. Rank 0 sent float32 (784, 128); rank 2 sent float32 ()"},
      {[](auto& request) { request.tensors[0].name = "bias"; },
       "tensors differ. Rank 0 sent 'kernel'; rank 2 sent 'bias'"},
      {[](auto& request) { request.tensors.push_back({"bias", {128}}); },
       "numbers of tensors differ. Rank 0 sent 1 tensor, 'kernel'; rank 2 sent "
       "2 tensors, 'kernel' to 'bias'"},
      // The difference of types is told, and not that of numbers.
      {[](auto& request) {
         request.tensors.push_back({"bias", {128}});
         request.dtype = DataType::kInt64;
       },
       "dtypes differ. Rank 0 sent float32; rank 2 sent int64"},
      {[](auto& request) { request.op = ReduceOp::kAverage; },
       "ops differ. Rank 0 sent sum; rank 2 sent average"},
      {[](auto& request) { request.root_rank = 1; },
       "root ranks differ. Rank 0 sent 0; rank 2 sent 1"},
      {[](auto& request) { request.postscale_factor = 0.5; },
       "factors differ. Rank 0 sent prescale 1, postscale 1; rank 2 sent "
       "prescale 1, postscale 0.5"},
      // Ranks that scaled by almost the same would get almost the same.
      {[](auto& request) { request.prescale_factor = 1 + 0x1p-52; },
       "factors differ. Rank 0 sent prescale 1, postscale 1; rank 2 sent "
       "prescale 1.0000000000000002, postscale 1"},
  };
  for (const auto& [change, text] : cases) {
    EXPECT_EQ(DifferenceAfter(change), text);
  }
}

TEST(DifferenceTest, OfOneShapeAmongMany) {
  CollectiveRequest a;
  a.tensors = {{"kernel", {784, 128}}, {"bias", {128}}};
  CollectiveRequest b = a;
  b.tensors[1].dims = {64};
  EXPECT_EQ(DescribeDifference(a, 0, b, 2),
            "shapes of 'bias' differ. Rank 0 sent float32 (128,); rank 2 sent "
            "float32 (64,)");
}

TEST(DifferenceTest, NamesMayDifferButForTheLastPart) {
  const auto rename = [](const std::string& to) {
    return [to](CollectiveRequest& request) { request.tensors[0].name = to; };
  };
  constexpr auto kKind = CollectiveKind::kAllreduce;
  const std::string name = "model/dense/kernel";
  EXPECT_EQ(DifferenceAfter(rename("dense_12/kernel_1"), kKind, name), "");
  EXPECT_NE(DifferenceAfter(rename("model/dense/kernel2"), kKind, name), "");
  EXPECT_EQ(
      DifferenceAfter(
          [](auto& request) { request.tensors.push_back({"bias", {128}}); },
          kKind, ""),
      "numbers of tensors differ. Rank 0 sent 1 tensor, unnamed; rank 2 sent "
      "2 tensors, unnamed to 'bias'");
}

TEST(DifferenceTest, SomeKindsMayDifferInTheFirstDimensionAlone) {
  for (const auto& [kind, may] :
       {std::pair(CollectiveKind::kAllgather, true),
        std::pair(CollectiveKind::kAlltoall, true),
        std::pair(CollectiveKind::kReduceScatter, false)}) {
    const auto differs = [kind = kind](const std::vector<int64_t>& dims) {
      return !DifferenceAfter(
                  [&](auto& request) { request.tensors[0].dims = dims; }, kind)
                  .empty();
    };
    EXPECT_EQ(differs({0, 128}), !may) << Name(kind);
    EXPECT_TRUE(differs({784, 64})) << Name(kind);
    EXPECT_TRUE(differs({784})) << Name(kind);
  }
}

}  // namespace
}  // namespace tfring
