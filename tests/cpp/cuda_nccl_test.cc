// The collectives where NCCL serves: here a fake one, on fake GPUs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/nccl_ranks.h"
#include "tests/cpp/ring_checks.h"
#include "tests/cpp/run_collective.h"
#include "tfring_ops/algorithms/stream_collectives.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/engine/tensor_entry.h"

namespace tfring {
namespace {

class CudaNcclTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, CudaNcclTest, testing::Values(1, 2, 3, 4));

// Returns true if NCCL can add up the type.
bool IsOfNccl(DataType dtype) {
  return dtype != DataType::kInt16 && dtype != DataType::kUint16 &&
         dtype != DataType::kBool;
}

// One collective on one rank: its tensors on the GPU.
class DeviceEntry {
 public:
  DeviceEntry(const CudaDevice& device, CollectiveKind kind, DataType dtype)
      : device_(device) {
    entry.request.kind = kind;
    entry.request.dtype = dtype;
    entry.request.device = device.ordinal();
    entry.allocate_output = [this](int /*index*/,
                                   const std::vector<int64_t>& dims) {
      const int64_t bytes =
          SizeInBytes(entry.request.dtype, TensorInfo{"", dims});
      outputs_.emplace_back(device_, Elements(bytes));
      return static_cast<void*>(outputs_.back().data());
    };
  }

  // `output_bytes` of its own, or in place.
  void Add(const Elements& input, const std::vector<int64_t>& dims,
           int64_t output_bytes = 0) {
    inputs_.emplace_back(device_, input);
    TensorEntry::Buffer buffer{inputs_.back().data(), inputs_.back().data()};
    if (output_bytes > 0) {
      outputs_.emplace_back(device_, Elements(output_bytes, std::byte{0x5a}));
      buffer.output = outputs_.back().data();
    }
    entry.request.tensors.push_back({"", dims});
    entry.buffers.push_back(buffer);
  }

  // All of it, also on the GPU.
  void Run(ExecutionContext& context, StreamCollectives& collectives,
           const Response& response = {}) {
    absl::Status status = RunCollective(context, entry, response);
    ASSERT_TRUE(status.ok()) << status;
    status = collectives.Finish();
    ASSERT_TRUE(status.ok()) << status;
  }

  Elements input(int index) const { return inputs_[index].Download(); }
  Elements output(int index) const { return outputs_[index].Download(); }

  TensorEntry entry;

 private:
  const CudaDevice& device_;
  std::deque<DeviceElements> inputs_, outputs_;
};

// The short tensors are packed; the long one is not.
constexpr int64_t kCounts[] = {7, 1001, 50'001};

struct Factors {
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<DataType> wire_dtype = {};
};

void CheckAllreduce(int rank, int size, ExecutionContext& context,
                    const CudaDevice& device, StreamCollectives& collectives,
                    DataType dtype, ReduceOp op, const Factors& factors) {
  DeviceEntry collective(device, CollectiveKind::kAllreduce, dtype);
  collective.entry.request.op = op;
  collective.entry.request.prescale_factor = factors.prescale;
  collective.entry.request.postscale_factor = factors.postscale;
  collective.entry.request.wire_dtype = factors.wire_dtype;
  for (const int64_t count : kCounts) {
    collective.Add(AllreduceInput(dtype, op, count, rank), {count});
  }
  collective.Run(context, collectives);
  int index = 0;
  for (const int64_t count : kCounts) {
    ASSERT_TRUE(collective.input(index++) ==
                AllreduceOutput(dtype, op, count, size,
                                factors.prescale * factors.postscale))
        << Name(op) << " of " << count << " " << Name(dtype) << " on rank "
        << rank << " of " << size << ", times " << factors.prescale;
  }
}

TEST_P(CudaNcclTest, Allreduce) {
  const int size = GetParam();
  for (const DataType dtype : kDataTypes) {
    const WithFakeCuda slow(&FakeOptions::delay_us, IsOfNccl(dtype) ? 100 : 0);
    const int before = FakeNccl()->collectives;
    OnNccl(size, [&](int rank, ExecutionContext& context,
                     const CudaDevice& device, StreamCollectives& collectives) {
      for (const ReduceOp op : kReduceOps) {
        // On two ranks every type with every operation.
        if (size != 2 && op != ReduceOp::kSum && dtype != DataType::kFloat32) {
          continue;
        }
        CheckAllreduce(rank, size, context, device, collectives, dtype, op, {});
      }
      if (dtype == DataType::kFloat32) {
        for (const Factors factors : {Factors{2.0, 0.25}, Factors{1.0, 0.5},
                                      Factors{1.0, 1.0, DataType::kFloat16}}) {
          CheckAllreduce(rank, size, context, device, collectives, dtype,
                         ReduceOp::kSum, factors);
        }
      }
    });
    EXPECT_EQ(FakeNccl()->collectives > before, IsOfNccl(dtype)) << Name(dtype);
  }
}

TEST_P(CudaNcclTest, ReduceScatter) {
  const int size = GetParam();
  constexpr int64_t kColumns = 301;
  for (const DataType dtype : kDataTypes) {
    OnNccl(size, [&](int rank, ExecutionContext& context,
                     const CudaDevice& device, StreamCollectives& collectives) {
      // Equal shares, unequal ones, and none for some.
      for (const int64_t rows : {12, 7, 1}) {
        for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMax}) {
          DeviceEntry collective(device, CollectiveKind::kReduceScatter, dtype);
          collective.entry.request.op = op;
          const TensorInfo tensor{"", {rows, kColumns}};
          const Range own = RowsOfRank(tensor, rank, size);
          const int64_t row_bytes = kColumns * SizeInBytes(dtype);
          collective.Add(AllreduceInput(dtype, op, rows * kColumns, rank),
                         tensor.dims, own.count * row_bytes + 1);
          collective.Run(context, collectives);
          const Elements all =
              AllreduceOutput(dtype, op, rows * kColumns, size);
          Elements expected(all.begin() + own.offset * row_bytes,
                            all.begin() + (own.offset + own.count) * row_bytes);
          expected.push_back(std::byte{0x5a});  // nothing behind it is touched
          ASSERT_TRUE(collective.output(0) == expected)
              << Name(op) << " of " << rows << " rows of " << Name(dtype)
              << " on rank " << rank << " of " << size;
        }
      }
    });
  }
}

TEST_P(CudaNcclTest, Allgather) {
  const int size = GetParam();
  for (const DataType dtype : {DataType::kFloat32, DataType::kBool}) {
    for (const bool ragged : {false, true}) {
      const int before = FakeNccl()->collectives;
      OnNccl(
          size, [&](int rank, ExecutionContext& context,
                    const CudaDevice& device, StreamCollectives& collectives) {
            std::vector<int64_t> rows(size, 5);
            // Rank 1 contributes no rows.
            if (ragged) {
              for (int peer = 0; peer < size; ++peer)
                rows[peer] = 20 * peer % 60;
              if (size > 1) rows[1] = 0;
            }
            const int64_t row_bytes = 1000 * SizeInBytes(dtype);
            Elements expected;
            for (int peer = 0; peer < size; ++peer) {
              const Elements part = BytesOf(peer, rows[peer] * row_bytes);
              expected.insert(expected.end(), part.begin(), part.end());
            }
            DeviceEntry collective(device, CollectiveKind::kAllgather, dtype);
            collective.Add(BytesOf(rank, rows[rank] * row_bytes),
                           {rows[rank], 1000});
            Response response;
            for (const int64_t of_rank : rows) {
              response.sizes.push_back({of_rank});
            }
            collective.Run(context, collectives, response);
            ASSERT_TRUE(collective.output(0) == expected)
                << Name(dtype) << " on rank " << rank << " of " << size;
          });
      EXPECT_TRUE(FakeNccl()->collectives > before || (ragged && size < 3));
    }
  }
}

TEST_P(CudaNcclTest, Broadcast) {
  const int size = GetParam();
  OnNccl(size, [&](int rank, ExecutionContext& context,
                   const CudaDevice& device, StreamCollectives& collectives) {
    for (int root = 0; root < size; ++root) {
      DeviceEntry collective(device, CollectiveKind::kBroadcast,
                             DataType::kUint16);
      for (const int64_t count : {0, 1, 40'001}) {
        collective.Add(BytesOf(rank, 2 * count), {count}, 2 * count + 1);
      }
      collective.entry.request.root_rank = root;
      collective.Run(context, collectives);
      int index = 0;
      for (const int64_t count : {0, 1, 40'001}) {
        Elements expected = BytesOf(root, 2 * count);
        expected.push_back(std::byte{0x5a});
        ASSERT_TRUE(collective.output(index++) == expected)
            << count << " from " << root << " on rank " << rank;
      }
    }
  });
}

}  // namespace
}  // namespace tfring
