// Checks of every ring collective, on one rank of a job whose ranks all make
// the same calls: threads in ring_test.cc, processes under mpirun in
// mpi_ring_test.cc.
#ifndef TESTS_CPP_RING_CHECKS_H_
#define TESTS_CPP_RING_CHECKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tfring_ops/algorithms/pairwise/alltoall.h"
#include "tfring_ops/algorithms/ring/allgather.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/broadcast.h"
#include "tfring_ops/algorithms/ring/reduce_scatter.h"
#include "tfring_ops/kernels/kernels.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

struct AllreduceCase {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;
  double postscale = 1.0;
};

// A case with its outcome on `size` ranks, known without a ring.
struct SolvedAllreduce : AllreduceCase {
  SolvedAllreduce(const AllreduceCase& c, int size)
      : AllreduceCase(c),
        expected(AllreduceOutput(dtype, op, count, size, postscale)) {}

  Elements expected;
};

// Every segment size, in and out of place.
template <typename Allreduce = decltype(&RingAllreduce)>
void CheckAllreduce(Transport& transport, const SolvedAllreduce& c,
                    const std::vector<int64_t>& segment_sizes,
                    const Allreduce& allreduce = &RingAllreduce) {
  const Elements input =
      AllreduceInput(c.dtype, c.op, c.count, transport.rank());
  Elements source, output;
  Workspace scratch(CpuKernels());
  for (const int64_t segment_bytes : segment_sizes) {
    const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
    for (const bool in_place : {false, true}) {
      source = input;
      output.assign(input.size(), std::byte{0x5a});
      Elements& result = in_place ? source : output;
      const absl::Status status = allreduce(
          context,
          {source.data(), result.data(), c.count, c.dtype, c.op, c.postscale});
      const auto what = [&] {
        return testing::Message()
               << Name(c.op) << " of " << c.count << " " << Name(c.dtype)
               << " on rank " << transport.rank() << " of " << transport.size()
               << (in_place ? " in place" : "") << ", segments of "
               << segment_bytes << " bytes";
      };
      ASSERT_TRUE(status.ok()) << what() << ": " << status;
      ASSERT_TRUE(result == c.expected) << what();
      ASSERT_TRUE(in_place || source == input) << what() << ": input changed";
    }
  }
}

// Reduces pieces of `lengths`, the first, third and so on in place.
template <typename Allreduce = decltype(&RingAllreduce)>
void CheckAllreduceOfPieces(Transport& transport, const SolvedAllreduce& c,
                            const std::vector<int64_t>& lengths,
                            int64_t segment_bytes,
                            const Allreduce& allreduce = &RingAllreduce) {
  const int64_t element_bytes = SizeInBytes(c.dtype);
  const Elements input =
      AllreduceInput(c.dtype, c.op, c.count, transport.rank());
  std::vector<Elements> sources, outputs;
  std::vector<RingPiece> pieces;
  auto begin = input.begin();
  for (const int64_t length : lengths) {
    const auto end = begin + length * element_bytes;
    sources.emplace_back(begin, end);
    outputs.emplace_back(sources.back().size());
    begin = end;
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (i % 2 == 0) outputs[i] = std::move(sources[i]);
    const bool in_place = i % 2 == 0;
    pieces.push_back({(in_place ? outputs : sources)[i].data(),
                      outputs[i].data(), lengths[i]});
  }
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  const absl::Status status =
      allreduce(context, {nullptr, nullptr, CountOf(pieces, c.dtype), c.dtype,
                          c.op, c.postscale, pieces});
  ASSERT_TRUE(status.ok()) << status;
  Elements result;
  for (const Elements& output : outputs) {
    result.insert(result.end(), output.begin(), output.end());
  }
  ASSERT_TRUE(result == c.expected)
      << Name(c.op) << " of " << c.count << " " << Name(c.dtype) << " on rank "
      << transport.rank() << " of " << transport.size() << ", segments of "
      << segment_bytes << " bytes";
}

// Through a stage of `stage_count` elements.
template <typename Allreduce = decltype(&StagedRingAllreduce)>
void CheckStagedAllreduce(Transport& transport, const SolvedAllreduce& c,
                          int64_t stage_count, int64_t segment_bytes,
                          const Allreduce& allreduce = &StagedRingAllreduce) {
  class Copying final : public Staging {
   public:
    Copying(const Elements& input, Elements& output, int64_t element_bytes)
        : input_(input), output_(output), element_bytes_(element_bytes) {}

    void Load(Range range, std::byte* to) override {
      std::copy_n(input_.begin() + range.offset * element_bytes_,
                  range.count * element_bytes_, to);
    }
    void Store(Range range, const std::byte* from) override {
      std::copy_n(from, range.count * element_bytes_,
                  output_.begin() + range.offset * element_bytes_);
    }

   private:
    const Elements& input_;
    Elements& output_;
    const int64_t element_bytes_;
  };

  const int64_t element_bytes = SizeInBytes(c.dtype);
  const Elements input =
      AllreduceInput(c.dtype, c.op, c.count, transport.rank());
  Elements output(input.size());
  Elements stage(stage_count * element_bytes);
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  Copying copying(input, output, element_bytes);
  const absl::Status status = allreduce(
      context, {nullptr, nullptr, c.count, c.dtype, c.op, c.postscale},
      absl::MakeSpan(stage), copying);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(output == c.expected)
      << Name(c.op) << " of " << c.count << " " << Name(c.dtype) << " on rank "
      << transport.rank() << " of " << transport.size() << ", segments of "
      << segment_bytes << " bytes, stage of " << stage_count;
}

// Numbers whose sum depends on the order of the additions.
template <typename Allreduce = decltype(&RingAllreduce)>
void CheckAllreduceIsTheSameOnAllRanks(
    Transport& transport, const AllreduceCase& c, int64_t segment_bytes,
    const Allreduce& allreduce = &RingAllreduce) {
  Elements data = MakeElements(c.dtype, c.count, [&](auto type, int64_t i) {
    return RandomElement<decltype(type)>(transport.rank(), i);
  });
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  absl::Status status = allreduce(
      context, {data.data(), data.data(), c.count, c.dtype, c.op, c.postscale});
  ASSERT_TRUE(status.ok()) << status;

  Elements of_rank_0 = data;
  const auto bytes = static_cast<int64_t>(data.size());
  status = RingBroadcast(context, of_rank_0.data(), bytes, /*root=*/0);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(data == of_rank_0)
      << Name(c.op) << " of " << c.count << " " << Name(c.dtype)
      << " differs between rank " << transport.rank() << " and rank 0";
}

// In and out of place; chunks[r] is rank r's.
inline void CheckReduceScatter(Transport& transport, const SolvedAllreduce& c,
                               const std::vector<Range>& chunks,
                               int64_t segment_bytes) {
  const Elements input =
      AllreduceInput(c.dtype, c.op, c.count, transport.rank());
  const int64_t element_bytes = SizeInBytes(c.dtype);
  const Range own = chunks[transport.rank()];
  const auto share = [&](const Elements& all) {
    const auto begin = all.begin() + own.offset * element_bytes;
    return Elements(begin, begin + own.count * element_bytes);
  };
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  for (const bool in_place : {false, true}) {
    Elements source = input;
    Elements output(input.size(), std::byte{0x5a});
    Elements& result = in_place ? source : output;
    const absl::Status status = RingReduceScatter(
        context,
        {source.data(), result.data(), c.count, c.dtype, c.op, c.postscale},
        chunks);
    const auto what = [&] {
      return testing::Message()
             << Name(c.op) << " of " << c.count << " " << Name(c.dtype)
             << ", of which " << own.count << " go to rank " << transport.rank()
             << " of " << transport.size() << (in_place ? ", in place" : "")
             << ", segments of " << segment_bytes << " bytes";
    };
    ASSERT_TRUE(status.ok()) << what() << ": " << status;
    ASSERT_TRUE(share(result) == share(c.expected)) << what();
    ASSERT_TRUE(in_place || source == input) << what() << ": input changed";
  }
  if (c.op != ReduceOp::kSum && c.op != ReduceOp::kAverage) return;
  Elements output(own.count * element_bytes);
  const absl::Status status = RingReduceScatterOwn(
      context,
      {input.data(), output.data(), c.count, c.dtype, c.op, c.postscale},
      chunks);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(output == share(c.expected))
      << Name(c.op) << " of " << c.count << " " << Name(c.dtype)
      << ", alone, segments of " << segment_bytes << " bytes";
}

// Byte `index` of the data of rank `rank`.
inline std::byte ByteOf(int rank, int64_t index) {
  return static_cast<std::byte>(RandomBits(rank, index));
}

inline Elements BytesOf(int rank, int64_t count) {
  Elements bytes(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = ByteOf(rank, i);
  return bytes;
}

inline void CheckAllgather(Transport& transport,
                           const std::vector<int64_t>& bytes_of_rank,
                           int64_t segment_bytes) {
  Elements expected;
  for (int rank = 0; rank < transport.size(); ++rank) {
    const Elements run = BytesOf(rank, bytes_of_rank[rank]);
    expected.insert(expected.end(), run.begin(), run.end());
  }
  const int rank = transport.rank();
  const Elements input = BytesOf(rank, bytes_of_rank[rank]);
  Elements output(expected.size());
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  const absl::Status status =
      RingAllgather(context, input.data(), output.data(), bytes_of_rank);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(output == expected)
      << "rank " << rank << " of " << transport.size() << ", segments of "
      << segment_bytes << " bytes";
}

// bytes[s][r] go from rank s to rank r.
inline void CheckAlltoall(Transport& transport,
                          const std::vector<std::vector<int64_t>>& bytes,
                          int64_t segment_bytes) {
  const int size = transport.size();
  const int rank = transport.rank();
  Elements input, expected;
  std::vector<int64_t> received_bytes;
  for (int peer = 0; peer < size; ++peer) {
    const Elements sent = BytesOf(rank * size + peer, bytes[rank][peer]);
    input.insert(input.end(), sent.begin(), sent.end());
    received_bytes.push_back(bytes[peer][rank]);
    const Elements received = BytesOf(peer * size + rank, bytes[peer][rank]);
    expected.insert(expected.end(), received.begin(), received.end());
  }
  Elements output(expected.size());
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  const absl::Status status = RingAlltoall(context, input.data(), output.data(),
                                           bytes[rank], received_bytes);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(output == expected)
      << "rank " << rank << " of " << size << ", segments of " << segment_bytes
      << " bytes";
}

inline void CheckBroadcast(Transport& transport, int64_t bytes, int root,
                           int64_t segment_bytes) {
  Elements data = BytesOf(transport.rank(), bytes);
  Workspace scratch(CpuKernels());
  const RingContext context{transport, CpuKernels(), segment_bytes, scratch};
  const absl::Status status = RingBroadcast(context, data.data(), bytes, root);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(data == BytesOf(root, bytes))
      << bytes << " bytes from rank " << root << " on rank " << transport.rank()
      << " of " << transport.size() << ", segments of " << segment_bytes
      << " bytes";
}

}  // namespace tfring

#endif  // TESTS_CPP_RING_CHECKS_H_
