// Checks of every ring collective.  Each check runs on one rank; all ranks of
// the job make the same calls.  Ranks are threads, or processes under mpirun,
// on the host or on GPUs.
#ifndef TESTS_CPP_RING_CHECKS_H_
#define TESTS_CPP_RING_CHECKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tests/cpp/elements.h"
#include "tfring_ops/algorithms/pairwise/alltoall.h"
#include "tfring_ops/algorithms/ring/allgather.h"
#include "tfring_ops/algorithms/ring/allreduce.h"
#include "tfring_ops/algorithms/ring/broadcast.h"
#include "tfring_ops/algorithms/ring/chunks.h"
#include "tfring_ops/algorithms/ring/reduce_scatter.h"
#include "tfring_ops/algorithms/ring/staged_allreduce.h"
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

inline std::vector<SolvedAllreduce> Solve(
    const std::vector<AllreduceCase>& cases, int size) {
  std::vector<SolvedAllreduce> solved;
  for (const AllreduceCase& c : cases) solved.emplace_back(c, size);
  return solved;
}

// The host's memory, and a tensor in it.
struct HostDevice {
  const Kernels& kernels() const { return CpuKernels(); }
};
class HostElements {
 public:
  HostElements(const HostDevice& /*device*/, Elements elements)
      : elements_(std::move(elements)) {}

  std::byte* data() const { return elements_.data(); }
  const Elements& Download() const { return elements_; }

 private:
  mutable Elements elements_;
};

// Byte `index` of the data of rank `rank`.
inline std::byte ByteOf(int rank, int64_t index) {
  return static_cast<std::byte>(RandomBits(rank, index));
}

inline Elements BytesOf(int rank, int64_t count) {
  Elements bytes(count);
  for (int64_t i = 0; i < count; ++i) bytes[i] = ByteOf(rank, i);
  return bytes;
}

// One rank, with its tensors on the device.
template <typename Device, typename Tensor>
class RingRank {
 public:
  RingRank(const Device& device, Transport& transport, int64_t segment_bytes)
      : device_(device),
        scratch_(device.kernels()),
        context_{transport, device.kernels(), segment_bytes, scratch_} {}

  const RingContext& context() const { return context_; }
  int rank() const { return context_.transport.rank(); }
  int size() const { return context_.transport.size(); }

  // Returns the result, out of place or in place; calls `begin` when the
  // tensors are on the device.
  template <typename Allreduce = decltype(&RingAllreduce)>
  absl::StatusOr<Elements> Reduce(
      const AllreduceCase& c, const Elements& input, bool in_place,
      const Allreduce& allreduce = &RingAllreduce,
      const std::function<void()>& begin = [] {}) {
    const Tensor source(device_, input);
    const Tensor output(device_, Elements(input.size(), std::byte{0x5a}));
    const Tensor& result = in_place ? source : output;
    begin();
    const absl::Status status = allreduce(
        context_,
        {source.data(), result.data(), c.count, c.dtype, c.op, c.postscale});
    if (!status.ok()) {
      context_.transport.Abort(status);
      return status;
    }
    EXPECT_TRUE(in_place || source.Download() == input) << LabelOf(c);
    return result.Download();
  }

  // In and out of place.
  template <typename Allreduce = decltype(&RingAllreduce)>
  void CheckAllreduce(const SolvedAllreduce& c,
                      const Allreduce& allreduce = &RingAllreduce) {
    const Elements input = AllreduceInput(c.dtype, c.op, c.count, rank());
    for (const bool in_place : {false, true}) {
      const auto result = Reduce(c, input, in_place, allreduce);
      ASSERT_TRUE(result.ok()) << LabelOf(c) << ": " << result.status();
      ASSERT_TRUE(*result == c.expected)
          << LabelOf(c) << (in_place ? ", in place" : "");
    }
  }

  // In and out of place, and alone; chunks[r] is rank r's.
  void CheckReduceScatter(const SolvedAllreduce& c,
                          const std::vector<Range>& chunks) {
    const Elements input = AllreduceInput(c.dtype, c.op, c.count, rank());
    const Range own = chunks[rank()];
    const int64_t element_bytes = SizeInBytes(c.dtype);
    const auto share = [&](const Elements& all) {
      const auto begin = all.begin() + own.offset * element_bytes;
      return Elements(begin, begin + own.count * element_bytes);
    };
    for (const bool in_place : {false, true}) {
      const Tensor source(device_, input);
      const Tensor output(device_, Elements(input.size(), std::byte{0x5a}));
      const Tensor& result = in_place ? source : output;
      const absl::Status status = RingReduceScatter(
          context_,
          {source.data(), result.data(), c.count, c.dtype, c.op, c.postscale},
          chunks);
      ASSERT_TRUE(status.ok()) << LabelOf(c) << ": " << status;
      ASSERT_TRUE(share(result.Download()) == share(c.expected))
          << LabelOf(c) << ", scattered" << (in_place ? ", in place" : "");
      ASSERT_TRUE(in_place || source.Download() == input) << LabelOf(c);
    }
    if (c.op != ReduceOp::kSum && c.op != ReduceOp::kAverage) return;
    const Tensor source(device_, input);
    const Tensor output(device_, Elements(own.count * element_bytes));
    const absl::Status status = RingReduceScatterOwn(
        context_,
        {source.data(), output.data(), c.count, c.dtype, c.op, c.postscale},
        chunks);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output.Download() == share(c.expected))
        << LabelOf(c) << ", scattered, alone";
  }

  void CheckAllgather(std::vector<int64_t> bytes_of_rank) {
    bytes_of_rank.resize(size());
    Elements expected;
    for (int peer = 0; peer < size(); ++peer) {
      const Elements run = BytesOf(peer, bytes_of_rank[peer]);
      expected.insert(expected.end(), run.begin(), run.end());
    }
    const Tensor input(device_, BytesOf(rank(), bytes_of_rank[rank()]));
    const Tensor output(device_, Elements(expected.size()));
    const absl::Status status =
        RingAllgather(context_, input.data(), output.data(), bytes_of_rank);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output.Download() == expected) << "gathered on " << Where();
  }

  // bytes_of(s, r) go from rank s to rank r.
  template <typename BytesFromTo>
  void CheckAlltoall(const BytesFromTo& bytes_of) {
    Elements input, expected;
    std::vector<int64_t> sent, received;
    for (int peer = 0; peer < size(); ++peer) {
      sent.push_back(bytes_of(rank(), peer));
      received.push_back(bytes_of(peer, rank()));
      const Elements to = BytesOf(rank() * size() + peer, sent.back());
      const Elements from = BytesOf(peer * size() + rank(), received.back());
      input.insert(input.end(), to.begin(), to.end());
      expected.insert(expected.end(), from.begin(), from.end());
    }
    const Tensor source(device_, input);
    const Tensor output(device_, Elements(expected.size()));
    const absl::Status status =
        RingAlltoall(context_, source.data(), output.data(), sent, received);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(output.Download() == expected) << "alltoall on " << Where();
  }

  void CheckBroadcast(int64_t bytes, int root) {
    const Tensor data(device_, BytesOf(rank(), bytes));
    const absl::Status status =
        RingBroadcast(context_, data.data(), bytes, root);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(data.Download() == BytesOf(root, bytes))
        << bytes << " bytes of rank " << root << " on " << Where();
  }

  // Runs all checks above, with few elements and with `many`.
  void CheckAll(const std::vector<SolvedAllreduce>& cases,
                int64_t many = 50'003) {
    for (const SolvedAllreduce& c : cases) {
      CheckAllreduce(c);
      // By rank: equal, rising, all to one.
      std::vector<Range> chunks, rising, all;
      for (int64_t peer = 0; peer < size(); ++peer) {
        chunks.push_back(ChunkOf(c.count, size(), static_cast<int>(peer)));
        const auto begin = [&](int64_t of) {
          return c.count * of * of / size() / size();
        };
        rising.push_back({begin(peer), begin(peer + 1) - begin(peer)});
        all.push_back({peer > 1 ? c.count : 0,
                       peer == std::min(size() - 1, 1) ? c.count : 0});
      }
      for (const auto* each : {&chunks, &rising, &all}) {
        CheckReduceScatter(c, *each);
      }
    }
    // By rank: all empty, one empty, one alone, equal, mixed.
    for (const std::vector<int64_t>& bytes :
         {std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0},
          {5, 0, 7, 1, 2, 3, 4, 5},
          {0, 0, 9, 0, 0, 0, 0, 0},
          {640, 640, 640, 640, 640, 640, 640, 640},
          {3, 0, many, 1, 0, many / 2, 3, 0}}) {
      CheckAllgather(bytes);
    }
    // All parts are equal; all are empty; they have every size.
    CheckAlltoall([](int, int) { return 40; });
    for (const int64_t unit : {int64_t{0}, many / 50 + 1}) {
      CheckAlltoall([&](int from, int to) {
        return unit * ((3 * from + 5 * to + from * to) % 7);
      });
    }
    for (int root = 0; root < size(); ++root) {
      for (const int64_t bytes : {int64_t{0}, int64_t{1}, many}) {
        CheckBroadcast(bytes, root);
      }
    }
  }

 protected:
  std::string LabelOf(const AllreduceCase& c) const {
    return absl::StrCat(Name(c.op), " of ", c.count, " ", Name(c.dtype), " on ",
                        Where());
  }
  std::string Where() const {
    return absl::StrCat("rank ", rank(), " of ", size(), ", segments of ",
                        context_.segment_bytes, " bytes");
  }

  const Device& device_;
  Workspace scratch_;
  const RingContext context_;
};

class HostRank : public RingRank<HostDevice, HostElements> {
 public:
  HostRank(Transport& transport, int64_t segment_bytes)
      : RingRank(Host(), transport, segment_bytes) {}

  // Reduces pieces of `lengths`, the first, third and so on in place.
  template <typename Allreduce = decltype(&RingAllreduce)>
  void CheckPieces(const SolvedAllreduce& c,
                   const std::vector<int64_t>& lengths,
                   const Allreduce& allreduce = &RingAllreduce) {
    const Elements input = AllreduceInput(c.dtype, c.op, c.count, rank());
    std::vector<Elements> sources, outputs;
    std::vector<RingPiece> pieces;
    auto begin = input.begin();
    for (const int64_t length : lengths) {
      const auto end = begin + length * SizeInBytes(c.dtype);
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
    const absl::Status status =
        allreduce(context_, {nullptr, nullptr, CountOf(pieces, c.dtype),
                             c.dtype, c.op, c.postscale, pieces});
    ASSERT_TRUE(status.ok()) << status;
    Elements result;
    for (const Elements& output : outputs) {
      result.insert(result.end(), output.begin(), output.end());
    }
    ASSERT_TRUE(result == c.expected) << LabelOf(c) << ", in pieces";
  }

  // Through a stage of `stage_count` elements.
  template <typename Allreduce = decltype(&StagedRingAllreduce)>
  void CheckStaged(const SolvedAllreduce& c, int64_t stage_count,
                   const Allreduce& allreduce = &StagedRingAllreduce) {
    struct Copying final : public Staging {
      void Load(Range range, std::byte* to) override {
        std::copy_n(input.begin() + range.offset * element_bytes,
                    range.count * element_bytes, to);
      }
      void Store(Range range, const std::byte* from) override {
        std::copy_n(from, range.count * element_bytes,
                    output.begin() + range.offset * element_bytes);
      }

      Elements input, output;
      int64_t element_bytes;
    } copying;
    copying.input = AllreduceInput(c.dtype, c.op, c.count, rank());
    copying.output.resize(copying.input.size());
    copying.element_bytes = SizeInBytes(c.dtype);
    Elements stage(stage_count * copying.element_bytes);
    const absl::Status status = allreduce(
        context_, {nullptr, nullptr, c.count, c.dtype, c.op, c.postscale},
        absl::MakeSpan(stage), copying);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(copying.output == c.expected)
        << LabelOf(c) << ", stage of " << stage_count;
  }

  // The sum of these numbers depends on the order of the additions.
  template <typename Allreduce = decltype(&RingAllreduce)>
  void CheckIsTheSameOnAllRanks(const AllreduceCase& c,
                                const Allreduce& allreduce = &RingAllreduce) {
    Elements data = MakeElements(c.dtype, c.count, [&](auto type, int64_t i) {
      return RandomElement<decltype(type)>(rank(), i);
    });
    absl::Status status = allreduce(
        context_,
        {data.data(), data.data(), c.count, c.dtype, c.op, c.postscale});
    ASSERT_TRUE(status.ok()) << status;
    Elements of_rank_0 = data;
    const auto bytes = static_cast<int64_t>(data.size());
    status = RingBroadcast(context_, of_rank_0.data(), bytes, /*root=*/0);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(data == of_rank_0) << LabelOf(c) << " differs from rank 0's";
  }

 private:
  static const HostDevice& Host() {
    static const HostDevice host;
    return host;
  }
};

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

// A few types and ops.
inline std::vector<SolvedAllreduce> SolveSomeTypesAndOps(int size) {
  return Solve({{DataType::kFloat32, ReduceOp::kSum, 1},
                {DataType::kFloat32, ReduceOp::kSum, 8191},
                {DataType::kFloat16, ReduceOp::kAverage, 1003},
                {DataType::kInt8, ReduceOp::kMax, 4097},
                {DataType::kFloat64, ReduceOp::kProduct, 1003, 0.25}},
               size);
}

// Checks an allreduce with each of the segment sizes.
template <typename Allreduce = decltype(&RingAllreduce)>
void CheckAllreduce(Transport& transport, const SolvedAllreduce& c,
                    const std::vector<int64_t>& segment_sizes,
                    const Allreduce& allreduce = &RingAllreduce) {
  for (const int64_t segment_bytes : segment_sizes) {
    HostRank(transport, segment_bytes).CheckAllreduce(c, allreduce);
  }
}

}  // namespace tfring

#endif  // TESTS_CPP_RING_CHECKS_H_
