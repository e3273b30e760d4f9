// Tensors that travel as another type.  The result has the same bits as a cast,
// a reduction in that type, and a cast back.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/engine/engine.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

using Tensors = std::vector<Elements>;

Tensors Cast(const Tensors& tensors, DataType from, DataType to) {
  Tensors results;
  for (const Elements& tensor : tensors) {
    const auto count = static_cast<int64_t>(tensor.size()) / SizeInBytes(from);
    Elements& result = results.emplace_back(count * SizeInBytes(to));
    const CopyPiece piece = {tensor.data(), result.data(), count};
    CpuKernels().CopyPieces({piece}, from, to, 1.0);
  }
  return results;
}

// Allreduces `inputs` as `request` says, and returns the outputs.
Tensors Allreduce(Engine& engine, CollectiveRequest request, Tensors& inputs,
                  bool in_place) {
  Tensors outputs = inputs;
  TensorEntry entry;
  request.name = "cast";
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto bytes = static_cast<int64_t>(inputs[i].size());
    request.tensors.push_back({"tensor", {bytes / SizeInBytes(request.dtype)}});
    entry.buffers.push_back(
        {in_place ? outputs[i].data() : inputs[i].data(), outputs[i].data()});
  }
  entry.request = std::move(request);
  Completion outcome;
  entry.done = [&](const absl::Status& status) { outcome.Done(status); };
  engine.Submit(std::move(entry));
  EXPECT_EQ(outcome.Wait(), absl::OkStatus());
  return outputs;
}

class WireTypeTest : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }

  // Uses small and large tensors, in total more than two blocks.
  void ExpectSameAsCastByHand(const Options& options) {
    const std::vector<int64_t> counts = {3, 0, 70'000, 1, 1000, 20'000};
    Job job(size(), options);
    OnThreads(size(), [&](int rank) {
      for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64}) {
        Tensors inputs;
        for (const int64_t count : counts) {
          inputs.push_back(
              MakeElements(dtype, count, [rank](auto type, int64_t i) {
                return RandomElement<decltype(type)>(rank, i);
              }));
        }
        for (const DataType wire : {DataType::kFloat16, DataType::kBfloat16}) {
          for (const double prescale : {1.0, 1.0 / 3}) {
            CollectiveRequest request;
            request.op = ReduceOp::kAverage;
            request.prescale_factor = prescale;
            request.postscale_factor = 0.7;
            request.dtype = wire;
            if (wire == DataType::kFloat16) {
              // Tensors that are float16 only on the wire are divided last.
              request.op = ReduceOp::kSum;
              request.postscale_factor /= size();
            }
            Tensors cast = Cast(inputs, dtype, wire);
            const Tensors expected = Cast(
                Allreduce(job.engine(rank), request, cast, true), wire, dtype);
            request.op = ReduceOp::kAverage;
            request.postscale_factor = 0.7;
            request.dtype = dtype;
            request.wire_dtype = wire;
            for (const bool in_place : {true, false}) {
              EXPECT_TRUE(Allreduce(job.engine(rank), request, inputs,
                                    in_place) == expected)
                  << Name(dtype) << " as " << Name(wire) << ", " << prescale;
            }
          }
        }
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Sizes, WireTypeTest, testing::Values(1, 2, 3, 4));

TEST_P(WireTypeTest, IsAsCastByHand) {
  Options options = Job::ShortOptions();
  options.segment_bytes = 4000;
  for (const int64_t threshold : {0, 100'000, 64 << 20}) {
    options.fusion_threshold_bytes = threshold;
    ExpectSameAsCastByHand(options);
  }
}

TEST_P(WireTypeTest, IsSoWithEveryAlgorithm) {
  for (const AllreduceAlgorithm algorithm :
       {AllreduceAlgorithm::kRecursiveDoubling,
        AllreduceAlgorithm::kHierarchical}) {
    Options options = Job::ShortOptions();
    options.allreduce = algorithm;
    ExpectSameAsCastByHand(options);
  }
}

}  // namespace
}  // namespace tfring
