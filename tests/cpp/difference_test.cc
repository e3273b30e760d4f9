// The message of every kind of mismatch.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tfring_ops/engine/negotiation/coordinator.h"

namespace tfring {
namespace {

CollectiveRequest MakeRequest() {
  CollectiveRequest request;
  request.name = "kernel";
  request.tensors = {{"kernel", {784, 128}}};
  return request;
}

std::string Difference(const CollectiveRequest& a, const CollectiveRequest& b) {
  return DescribeDifference(a, 0, b, 2);
}

// Between MakeRequest() on rank 0 and its changed copy on rank 2.
std::string DifferenceAfter(std::function<void(CollectiveRequest&)> change) {
  CollectiveRequest changed = MakeRequest();
  change(changed);
  return Difference(MakeRequest(), changed);
}

TEST(DifferenceTest, EqualRequestsHaveNone) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest&) {}), "");
}

TEST(DifferenceTest, OfKind) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.kind = CollectiveKind::kBroadcast;
            }),
            "collectives differ. Rank 0 sent allreduce; rank 2 sent broadcast");
}

TEST(DifferenceTest, OfDtype) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.dtype = DataType::kFloat64;
            }),
            "dtypes differ. Rank 0 sent float32; rank 2 sent float64");
}

TEST(DifferenceTest, OfDtypeOnTheWire) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.wire_dtype = DataType::kFloat16;
            }),
            "dtypes on the wire differ. Rank 0 sent float32; rank 2 sent "
            "float16");
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.wire_dtype = request.dtype;
            }),
            "");
}

TEST(DifferenceTest, OfWhereTheTensorsAre) {
  const std::string difference =
      DifferenceAfter([](CollectiveRequest& request) { request.device = 1; });
  EXPECT_EQ(difference,
            "places of the tensors differ. Rank 0 sent host memory; rank 2 "
            "sent GPU memory");
}

TEST(DifferenceTest, OfShape) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.tensors[0].dims = {784};
            }),
            "shapes differ. Rank 0 sent float32 (784, 128); rank 2 sent "
            "float32 (784,)");
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.tensors[0].dims = {};
            }),
            "shapes differ. Rank 0 sent float32 (784, 128); rank 2 sent "
            "float32 ()");
}

TEST(DifferenceTest, OfOneShapeAmongMany) {
  CollectiveRequest a = MakeRequest();
  a.tensors.push_back({"bias", {128}});
  CollectiveRequest b = a;
  b.tensors[1].dims = {64};
  EXPECT_EQ(Difference(a, b),
            "shapes of 'bias' differ. Rank 0 sent float32 (128,); rank 2 sent "
            "float32 (64,)");
}

TEST(DifferenceTest, OfTensorNames) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.tensors[0].name = "bias";
            }),
            "tensors differ. Rank 0 sent 'kernel'; rank 2 sent 'bias'");
}

TEST(DifferenceTest, NamesMayDifferButForTheLastPart) {
  CollectiveRequest a = MakeRequest();
  CollectiveRequest b = a;
  a.tensors[0].name = "model/dense/kernel";
  b.tensors[0].name = "dense_12/kernel_1";
  EXPECT_EQ(Difference(a, b), "");
  b.tensors[0].name = "model/dense/kernel2";
  EXPECT_NE(Difference(a, b), "");
}

TEST(DifferenceTest, OfNumberOfTensors) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.tensors.push_back({"bias", {128}});
            }),
            "numbers of tensors differ. Rank 0 sent 1 tensor, 'kernel'; rank 2 "
            "sent 2 tensors, 'kernel' to 'bias'");
}

TEST(DifferenceTest, OfATensorWithoutAName) {
  CollectiveRequest a = MakeRequest();
  a.tensors[0].name = "";
  CollectiveRequest b = a;
  b.tensors.push_back({"bias", {128}});
  EXPECT_EQ(Difference(a, b),
            "numbers of tensors differ. Rank 0 sent 1 tensor, unnamed; rank 2 "
            "sent 2 tensors, unnamed to 'bias'");
}

TEST(DifferenceTest, OfDtypesRatherThanOfNumbers) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.tensors.push_back({"bias", {128}});
              request.dtype = DataType::kInt64;
            }),
            "dtypes differ. Rank 0 sent float32; rank 2 sent int64");
}

TEST(DifferenceTest, OfOp) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.op = ReduceOp::kAverage;
            }),
            "ops differ. Rank 0 sent sum; rank 2 sent average");
}

TEST(DifferenceTest, OfRootRank) {
  EXPECT_EQ(DifferenceAfter(
                [](CollectiveRequest& request) { request.root_rank = 1; }),
            "root ranks differ. Rank 0 sent 0; rank 2 sent 1");
}

TEST(DifferenceTest, OfFactors) {
  EXPECT_EQ(DifferenceAfter([](CollectiveRequest& request) {
              request.postscale_factor = 0.5;
            }),
            "factors differ. Rank 0 sent prescale 1, postscale 1; rank 2 sent "
            "prescale 1, postscale 0.5");
}

// Ranks that scaled by almost the same would get almost the same.
TEST(DifferenceTest, OfFactorsInTheLastBit) {
  const std::string difference =
      DifferenceAfter([](CollectiveRequest& request) {
        request.prescale_factor = 1 + 0x1p-52;
      });
  EXPECT_NE(difference.find("prescale 1,"), std::string::npos) << difference;
  EXPECT_NE(difference.find("prescale 1.0000000000000002,"), std::string::npos)
      << difference;
}

TEST(DifferenceTest, AllgathersMayDifferInTheFirstDimensionAlone) {
  CollectiveRequest a = MakeRequest();
  a.kind = CollectiveKind::kAllgather;
  CollectiveRequest b = a;
  b.tensors[0].dims = {0, 128};
  EXPECT_EQ(Difference(a, b), "");
  b.tensors[0].dims = {784, 64};
  EXPECT_NE(Difference(a, b), "");
  b.tensors[0].dims = {784};
  EXPECT_NE(Difference(a, b), "");
}

}  // namespace
}  // namespace tfring
