// Random collectives of all kinds, with their expected results.
#ifndef TESTS_CPP_RANDOM_COLLECTIVES_H_
#define TESTS_CPP_RANDOM_COLLECTIVES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/engines.h"

namespace tfring {

inline constexpr int kColumns = 3;  // of what has rows

using Random = std::mt19937;

inline int64_t Below(Random& random, int64_t end) {
  // Unlike <random>'s distributions, the same everywhere.
  return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
}

template <typename Container>
const auto& OneOf(Random& random, const Container& of) {
  return of[Below(random, static_cast<int64_t>(std::size(of)))];
}

// Mostly few, at times none, and at times more than a segment or a pack.
inline int64_t SomeCount(Random& random) {
  constexpr int64_t kEnds[] = {2, 50, 50, 50, 3000, 3000, 20'000};
  return Below(random, OneOf(random, kEnds));
}

// One collective: the input and the expected output of each rank.
struct RandomCollective {
  struct Part {
    std::vector<Elements> inputs, expected;  // of each tensor
    std::vector<int64_t> received_splits;    // of an alltoall
    CollectiveRequest request;
  };

  bool in_place = false;
  std::vector<Part> of_rank;
};

class Maker {
 public:
  // Makes collectives of `size` ranks.
  Maker(Random& random, int size) : random_(random), size_(size) {}

  RandomCollective Make(const std::string& name) {
    constexpr CollectiveKind kKinds[] = {
        CollectiveKind::kAllreduce,      CollectiveKind::kAllreduce,
        CollectiveKind::kAllreduce,      CollectiveKind::kAllgather,
        CollectiveKind::kBroadcast,      CollectiveKind::kAlltoall,
        CollectiveKind::kReduceScatter,  CollectiveKind::kAdasum,
        CollectiveKind::kScatterInPlace, CollectiveKind::kGatherInPlace,
        CollectiveKind::kBarrier};
    RandomCollective result;
    result.of_rank.resize(size_);
    CollectiveRequest request;
    request.name = name;
    request.kind = OneOf(random_, kKinds);
    request.dtype = OneOf(random_, kDataTypes);
    request.op = OneOf(random_, kReduceOps);
    request.root_rank = static_cast<int>(Below(random_, size_));
    for (RandomCollective::Part& part : result.of_rank) part.request = request;
    const int64_t tensors = 1 + Below(random_, 4);
    for (int64_t i = 0; i < tensors; ++i) {
      switch (request.kind) {
        case CollectiveKind::kAllreduce:
          result.in_place = Below(random_, 2) == 0;
          AddAllreduce(result);
          break;
        case CollectiveKind::kReduceScatter:
          AddReduceScatter(result);
          break;
        case CollectiveKind::kScatterInPlace:
          result.in_place = true;
          AddReduceScatter(result);
          break;
        case CollectiveKind::kGatherInPlace:
          if (i == 0) result.in_place = Below(random_, 2) == 0;
          AddGatherInPlace(result);
          break;
        case CollectiveKind::kBroadcast:
          AddBroadcast(result);
          break;
        case CollectiveKind::kAllgather:
          AddAllgather(result);
          break;
        case CollectiveKind::kAlltoall:
          if (i == 0) AddAlltoall(result);
          break;
        case CollectiveKind::kAdasum:
          AddAdasum(result);
          break;
        case CollectiveKind::kBarrier:
        case CollectiveKind::kJoin:
          break;
      }
    }
    return result;
  }

  // Gives an allgather or alltoall new random sizes, as the next step of a
  // script may.
  void Vary(RandomCollective& collective) {
    const CollectiveRequest& request = collective.of_rank[0].request;
    if (request.kind != CollectiveKind::kAllgather &&
        request.kind != CollectiveKind::kAlltoall) {
      return;
    }
    const size_t tensors = request.tensors.size();
    for (RandomCollective::Part& part : collective.of_rank) {
      part.request.tensors.clear();
      part.request.splits.clear();
      part.received_splits.clear();
      part.inputs.clear();
      part.expected.clear();
    }
    for (size_t i = 0; i < tensors; ++i) {
      request.kind == CollectiveKind::kAllgather ? AddAllgather(collective)
                                                 : AddAlltoall(collective);
    }
  }

 private:
  using Part = RandomCollective::Part;

  static void Add(Part& part, std::vector<int64_t> dims, Elements input,
                  Elements expected) {
    part.request.tensors.push_back({"", std::move(dims)});
    part.inputs.push_back(std::move(input));
    part.expected.push_back(std::move(expected));
  }

  static Elements Slice(const Elements& all, DataType dtype, int64_t first,
                        int64_t count) {
    const auto begin = all.begin() + first * SizeInBytes(dtype);
    return Elements(begin, begin + count * SizeInBytes(dtype));
  }

  // The inputs and the sum of an allreduce, from a random element on.
  struct Sum {
    std::vector<Elements> inputs;
    Elements whole;
  };
  Sum MakeSum(const CollectiveRequest& request, int64_t count) {
    const DataType dtype = request.dtype;
    const int64_t shift = Below(random_, 64);
    const auto cut = [&](const Elements& elements) {
      return Slice(elements, dtype, shift, count);
    };
    Sum sum;
    for (int rank = 0; rank < size_; ++rank) {
      sum.inputs.push_back(
          cut(AllreduceInput(dtype, request.op, shift + count, rank)));
    }
    sum.whole = cut(AllreduceOutput(dtype, request.op, shift + count, size_));
    return sum;
  }

  Elements Noise(DataType dtype, int64_t count) {
    const auto seed = static_cast<int>(Below(random_, 64));
    return MakeElements(dtype, count, [&](auto type, int64_t i) {
      return RandomElement<decltype(type)>(seed, i);
    });
  }

  void AddAllreduce(RandomCollective& to) {
    const int64_t count = SomeCount(random_);
    Sum sum = MakeSum(to.of_rank[0].request, count);
    for (int rank = 0; rank < size_; ++rank) {
      Add(to.of_rank[rank], {count}, std::move(sum.inputs[rank]), sum.whole);
    }
  }

  void AddReduceScatter(RandomCollective& to) {
    const CollectiveRequest& request = to.of_rank[0].request;
    const int64_t rows = SomeCount(random_);
    Sum sum = MakeSum(request, rows * kColumns);
    for (int rank = 0; rank < size_; ++rank) {
      const TensorInfo tensor{"", {rows, kColumns}};
      Range own = RowsOfRank(tensor, rank, size_);
      own = to.in_place ? ShareOfRank(tensor, rank, size_)
                        : Range{own.offset * kColumns, own.count * kColumns};
      const Elements of_rank =
          Slice(sum.whole, request.dtype, own.offset, own.count);
      // In place, the remaining elements keep their values.
      Elements expected =
          to.in_place ? sum.inputs[rank] : Elements(of_rank.size());
      std::copy(of_rank.begin(), of_rank.end(),
                expected.begin() + (to.in_place ? own.offset : 0) *
                                       SizeInBytes(request.dtype));
      Add(to.of_rank[rank], {rows, kColumns}, std::move(sum.inputs[rank]),
          std::move(expected));
    }
  }

  void AddGatherInPlace(RandomCollective& to) {
    const DataType dtype = to.of_rank[0].request.dtype;
    const int64_t rows = SomeCount(random_);
    const int64_t bytes = SizeInBytes(dtype);
    const Elements all = Noise(dtype, rows * kColumns);
    for (int rank = 0; rank < size_; ++rank) {
      const Range own = ShareOfRank({"", {rows, kColumns}}, rank, size_);
      const auto share = all.begin() + own.offset * bytes;
      Elements input;
      if (to.in_place) {
        input = Noise(dtype, rows * kColumns);
        std::copy_n(share, own.count * bytes,
                    input.begin() + own.offset * bytes);
      } else {
        input.assign(share, share + own.count * bytes);
      }
      Add(to.of_rank[rank], {rows, kColumns}, std::move(input), all);
    }
  }

  void AddBroadcast(RandomCollective& to) {
    const CollectiveRequest& request = to.of_rank[0].request;
    const int64_t count = SomeCount(random_);
    const Elements of_root = Noise(request.dtype, count);
    for (int rank = 0; rank < size_; ++rank) {
      Add(to.of_rank[rank], {count},
          rank == request.root_rank ? of_root : Noise(request.dtype, count),
          of_root);
    }
  }

  void AddAllgather(RandomCollective& to) {
    const DataType dtype = to.of_rank[0].request.dtype;
    std::vector<Elements> inputs;
    std::vector<int64_t> rows;
    Elements all;
    for (int rank = 0; rank < size_; ++rank) {
      rows.push_back(SomeCount(random_));
      inputs.push_back(Noise(dtype, rows.back() * kColumns));
      all.insert(all.end(), inputs.back().begin(), inputs.back().end());
    }
    for (int rank = 0; rank < size_; ++rank) {
      Add(to.of_rank[rank], {rows[rank], kColumns}, inputs[rank], all);
    }
  }

  void AddAlltoall(RandomCollective& to) {
    const DataType dtype = to.of_rank[0].request.dtype;
    std::vector<Elements> expected(size_);
    std::vector<Elements> inputs(size_);
    for (int from = 0; from < size_; ++from) {
      std::vector<int64_t>& splits = to.of_rank[from].request.splits;
      for (int rank = 0; rank < size_; ++rank) {
        splits.push_back(SomeCount(random_));
        const Elements run = Noise(dtype, splits.back() * kColumns);
        inputs[from].insert(inputs[from].end(), run.begin(), run.end());
        expected[rank].insert(expected[rank].end(), run.begin(), run.end());
        to.of_rank[rank].received_splits.push_back(splits.back());
      }
    }
    for (int rank = 0; rank < size_; ++rank) {
      Part& part = to.of_rank[rank];
      int64_t rows = 0;
      for (const int64_t split : part.request.splits) rows += split;
      Add(part, {rows, kColumns}, std::move(inputs[rank]),
          std::move(expected[rank]));
    }
  }

  // Every rank has the same tensor, which is then the result.
  void AddAdasum(RandomCollective& to) {
    const int64_t count = SomeCount(random_);
    const DataType dtype = kFloatTypes[Below(random_, 4)];
    for (Part& part : to.of_rank) {
      if (part.request.tensors.empty()) part.request.dtype = dtype;
    }
    const Elements same = Noise(to.of_rank[0].request.dtype, count);
    for (Part& part : to.of_rank) Add(part, {count}, same, same);
  }

  Random& random_;
  const int size_;
};

// One rank's part of a collective while it is in flight.
class Running {
 public:
  Running(RandomCollective::Part part, bool in_place)
      : part_(std::move(part)), in_place_(in_place) {}

  // May be changed before it is submitted.
  TensorEntry callbacks;  // what else the entry gets
  bool differs = false;   // on one of the ranks

  void SubmitTo(Engine& engine) {
    TensorEntry entry = callbacks;
    entry.request = part_.request;
    entry.inputs_are_shares =
        !in_place_ && part_.request.kind == CollectiveKind::kGatherInPlace;
    outputs_ = in_place_ ? part_.inputs : part_.expected;
    for (size_t i = 0; i < part_.inputs.size(); ++i) {
      if (!in_place_) {
        std::fill(outputs_[i].begin(), outputs_[i].end(), std::byte{0x5a});
      }
      entry.buffers.push_back({(in_place_ ? outputs_ : part_.inputs)[i].data(),
                               outputs_[i].data()});
    }
    if (!entry.allocate_output)
      entry.allocate_output =
          [this](int index,
                 const std::vector<int64_t>& dims) -> absl::StatusOr<void*> {
        outputs_[index].assign(
            SizeInBytes(part_.request.dtype, TensorInfo{"", dims}),
            std::byte{0x5a});
        return outputs_[index].data();
      };
    entry.on_received_splits = [this](const std::vector<int64_t>& splits) {
      received_splits_ = splits;
    };
    entry.done = [this](const absl::Status& status) {
      // The memory is freed here, so that AddressSanitizer sees a later use.
      if (!status.ok()) std::vector<Elements>().swap(outputs_);
      outcome_.Done(status);
    };
    engine.Submit(std::move(entry));
  }

  void Wait() { outcome_.Wait().IgnoreError(); }

  // Checks the result if there is one; returns the status that `done` got.
  absl::Status CheckIfOk() {
    const absl::Status status = outcome_.Wait();
    CheckOutcome(status);
    return status;
  }

  const CollectiveRequest& request() const { return part_.request; }

 private:
  void CheckOutcome(const absl::Status& status) {
    const CollectiveRequest& request = part_.request;
    ASSERT_EQ(outcome_.calls(), 1) << request.name;
    if (!status.ok()) return;
    ASSERT_TRUE(outputs_ == part_.expected)
        << request.name << ": " << Name(request.kind) << " of "
        << Name(request.dtype) << ", " << Name(request.op);
    ASSERT_EQ(received_splits_, part_.received_splits) << request.name;
  }

  const RandomCollective::Part part_;
  const bool in_place_;
  std::vector<Elements> outputs_;
  std::vector<int64_t> received_splits_;
  Completion outcome_;
};

}  // namespace tfring

#endif  // TESTS_CPP_RANDOM_COLLECTIVES_H_
