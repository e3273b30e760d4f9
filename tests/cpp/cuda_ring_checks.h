// ring_checks.h, with the tensors on a GPU.
#ifndef TESTS_CPP_CUDA_RING_CHECKS_H_
#define TESTS_CPP_CUDA_RING_CHECKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/algorithms/pairwise/adasum.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// One rank, with its GPU.
class GpuRank {
 public:
  GpuRank(const CudaDevice& device, Transport& transport, int64_t segment_bytes)
      : device_(device),
        scratch_(device.kernels()),
        context_{transport, device.kernels(), segment_bytes, scratch_} {}

  int rank() const { return context_.transport.rank(); }
  int size() const { return context_.transport.size(); }

  // Returns the sum, out of place or in place; calls `begin` when the tensors
  // are on the GPU.
  absl::StatusOr<Elements> Allreduce(
      const AllreduceCase& c, const Elements& input, bool in_place,
      const std::function<void()>& begin = [] {}) {
    const DeviceElements source(device_, input);
    const DeviceElements output(device_,
                                Elements(input.size(), std::byte{0x5a}));
    const DeviceElements& result = in_place ? source : output;
    begin();
    const absl::Status status = RingAllreduce(
        context_,
        {source.data(), result.data(), c.count, c.dtype, c.op, c.postscale});
    if (!status.ok()) {
      context_.transport.Abort(status);
      return status;
    }
    return result.Download();
  }

  void CheckAllreduce(const SolvedAllreduce& c) {
    const Elements input = AllreduceInput(c.dtype, c.op, c.count, rank());
    for (const bool in_place : {false, true}) {
      const auto result = Allreduce(c, input, in_place);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_TRUE(*result == c.expected)
          << Name(c.op) << " of " << c.count << " " << Name(c.dtype)
          << " on rank " << rank() << " of " << size()
          << (in_place ? ", in place" : "");
    }
  }

  void CheckReduceScatter(const SolvedAllreduce& c,
                          const std::vector<Range>& chunks) {
    const DeviceElements data(device_,
                              AllreduceInput(c.dtype, c.op, c.count, rank()));
    const absl::Status status = RingReduceScatter(
        context_,
        {data.data(), data.data(), c.count, c.dtype, c.op, c.postscale},
        chunks);
    ASSERT_TRUE(status.ok()) << status;
    const Elements result = data.Download();
    const int64_t element_bytes = SizeInBytes(c.dtype);
    const Range own = chunks[rank()];
    for (int64_t i = own.offset * element_bytes;
         i < (own.offset + own.count) * element_bytes; ++i) {
      ASSERT_EQ(result[i], c.expected[i]) << "byte " << i << " on " << rank();
    }
  }

  void CheckAllgather(const std::vector<int64_t>& bytes_of_rank) {
    Elements expected;
    for (int peer = 0; peer < size(); ++peer) {
      const Elements run = BytesOf(peer, bytes_of_rank[peer]);
      expected.insert(expected.end(), run.begin(), run.end());
    }
    const DeviceElements input(device_, BytesOf(rank(), bytes_of_rank[rank()]));
    const DeviceElements output(device_, Elements(expected.size()));
    const absl::Status status =
        RingAllgather(context_, input.data(), output.data(), bytes_of_rank);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output.Download() == expected) << "rank " << rank();
  }

  // Rank s sends `unit * (s + r)` bytes to rank r.
  void CheckAlltoall(int64_t unit) {
    Elements input, expected;
    std::vector<int64_t> sent, received;
    for (int peer = 0; peer < size(); ++peer) {
      sent.push_back(unit * (rank() + peer));
      received.push_back(unit * (peer + rank()));
      const Elements to = BytesOf(rank() * size() + peer, sent.back());
      const Elements from = BytesOf(peer * size() + rank(), received.back());
      input.insert(input.end(), to.begin(), to.end());
      expected.insert(expected.end(), from.begin(), from.end());
    }
    const DeviceElements source(device_, input);
    const DeviceElements output(device_, Elements(expected.size()));
    const absl::Status status =
        RingAlltoall(context_, source.data(), output.data(), sent, received);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output.Download() == expected) << "rank " << rank();
  }

  void CheckBroadcast(int64_t bytes, int root) {
    const DeviceElements data(device_, BytesOf(rank(), bytes));
    const absl::Status status =
        RingBroadcast(context_, data.data(), bytes, root);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(data.Download() == BytesOf(root, bytes)) << "rank " << rank();
  }

  // The same bits as on the host.
  void CheckAdasum(Transport& host, int64_t count) {
    Elements input =
        MakeElements(DataType::kFloat32, count, [&](auto type, int64_t i) {
          return RandomElement<decltype(type)>(rank(), i);
        });
    const DeviceElements data(device_, input);
    const DeviceElements received(device_, Elements(input.size()));
    absl::Status status = RingAdasum(context_, data.data(), received.data(),
                                     count, DataType::kFloat32);
    ASSERT_TRUE(status.ok()) << status;
    Elements host_received(input.size());
    Workspace scratch(CpuKernels());
    status = RingAdasum({host, CpuKernels(), context_.segment_bytes, scratch},
                        input.data(), host_received.data(), count,
                        DataType::kFloat32);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(data.Download() == input) << "rank " << rank();
  }

  // All of the above, of few elements and of many.
  void CheckAll(Transport& host, const std::vector<SolvedAllreduce>& cases) {
    for (const SolvedAllreduce& c : cases) {
      CheckAllreduce(c);
      std::vector<Range> chunks;
      for (int peer = 0; peer < size(); ++peer) {
        chunks.push_back(ChunkOf(c.count, size(), peer));
      }
      CheckReduceScatter(c, chunks);
    }
    for (std::vector<int64_t> bytes : {std::vector<int64_t>{0, 0, 0, 0},
                                       {3, 0, 50'001, 1},
                                       {640, 640, 640, 640}}) {
      bytes.resize(size());
      CheckAllgather(bytes);
    }
    for (const int64_t unit : {0, 1, 1001}) CheckAlltoall(unit);
    for (int root = 0; root < size(); ++root) {
      for (const int64_t bytes : {0, 1, 10'003}) CheckBroadcast(bytes, root);
    }
    CheckAdasum(host, 1001);
  }

 private:
  const CudaDevice& device_;
  Workspace scratch_;
  const RingContext context_;
};

// A few types and ops, solved for `size` ranks.
inline std::vector<SolvedAllreduce> SolveSomeTypesAndOps(int size) {
  return {{{DataType::kFloat32, ReduceOp::kSum, 1}, size},
          {{DataType::kFloat32, ReduceOp::kSum, 8191}, size},
          {{DataType::kFloat16, ReduceOp::kAverage, 1003}, size},
          {{DataType::kInt8, ReduceOp::kMax, 4097}, size},
          {{DataType::kFloat64, ReduceOp::kProduct, 1003, 0.25}, size}};
}

// Every type and op, solved for `size` ranks.
inline std::vector<SolvedAllreduce> SolveEveryTypeAndOp(
    int size, const std::vector<int64_t>& counts) {
  std::vector<SolvedAllreduce> cases;
  for (const DataType dtype : kDataTypes) {
    for (const ReduceOp op : kReduceOps) {
      for (const int64_t count : counts) {
        cases.emplace_back(AllreduceCase{dtype, op, count}, size);
      }
    }
  }
  return cases;
}

}  // namespace tfring

#endif  // TESTS_CPP_CUDA_RING_CHECKS_H_
