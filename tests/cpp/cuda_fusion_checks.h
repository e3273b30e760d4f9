// Checks of collectives that use the fusion buffer of a GPU.  Each check runs
// on one rank; all ranks of the job make the same calls.
#ifndef TESTS_CPP_CUDA_FUSION_CHECKS_H_
#define TESTS_CPP_CUDA_FUSION_CHECKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/ring_checks.h"
#include "tests/cpp/run_collective.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {

class GpuFusion {
 public:
  GpuFusion(const CudaDevice& device, Transport& transport,
            const Options& options)
      : device_(device),
        transport_(transport),
        context_(options, transport, device.kernels(), CostSource::kTypical,
                 Memory::kDevice) {}

  // Reduces that number of tensors in turn, each small enough to be packed;
  // calls `begin` when they are on the GPU.
  void CheckAllreduce(
      const SolvedAllreduce& c, int64_t tensors,
      const std::function<void()>& begin = [] {}) {
    const DeviceElements data(
        device_, AllreduceInput(c.dtype, c.op, c.count, transport_.rank()));
    TensorEntry entry;
    entry.request.dtype = c.dtype;
    entry.request.op = c.op;
    entry.request.postscale_factor = c.postscale;
    for (int64_t i = 0; i < tensors; ++i) {
      const int64_t begin = c.count * i / tensors;
      const int64_t end = c.count * (i + 1) / tensors;
      std::byte* const tensor = data.data() + begin * SizeInBytes(c.dtype);
      entry.request.tensors.push_back({"", {end - begin}});
      entry.buffers.push_back({tensor, tensor});
    }
    begin();
    status_ = RunCollective(context_, entry);
    if (!status_.ok()) return transport_.Abort(status_);
    ASSERT_TRUE(data.Download() == c.expected)
        << c.count << " on rank " << transport_.rank();
  }

  // Reduce-scatters tensors with these numbers of rows in turn.  Each is scaled
  // when it is packed into the fusion buffer.
  void CheckReduceScatter(const std::vector<int64_t>& rows) {
    SolvedAllreduce c(
        {DataType::kFloat32, ReduceOp::kSum,
         std::accumulate(rows.begin(), rows.end(), int64_t{0}), 4.0},
        transport_.size());
    const int64_t element_bytes = SizeInBytes(c.dtype);
    const DeviceElements data(
        device_, AllreduceInput(c.dtype, c.op, c.count, transport_.rank()));
    const DeviceElements results(device_, Elements(c.expected.size()));
    TensorEntry entry;
    entry.request.kind = CollectiveKind::kReduceScatter;
    entry.request.prescale_factor = c.postscale;
    int64_t offset = 0;
    Elements expected(c.expected.size());
    for (const int64_t count : rows) {
      entry.request.tensors.push_back({"", {count}});
      const Range own = RowsOfRank(entry.request.tensors.back(),
                                   transport_.rank(), transport_.size());
      entry.buffers.push_back({data.data() + offset, results.data() + offset});
      const auto first =
          c.expected.begin() + offset + own.offset * element_bytes;
      std::copy(first, first + own.count * element_bytes,
                expected.begin() + offset);
      offset += count * element_bytes;
    }
    status_ = RunCollective(context_, entry);
    if (!status_.ok()) return transport_.Abort(status_);
    ASSERT_TRUE(results.Download() == expected)
        << c.count << " on rank " << transport_.rank();
  }

  // The status of the latest collective.
  const absl::Status& status() const { return status_; }

 private:
  const CudaDevice& device_;
  Transport& transport_;
  ExecutionContext context_;
  absl::Status status_;
};

}  // namespace tfring

#endif  // TESTS_CPP_CUDA_FUSION_CHECKS_H_
