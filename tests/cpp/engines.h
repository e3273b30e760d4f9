// Engines of an in-process job, and the outcomes of their entries.
//
// Submit never blocks, so one test thread can play every rank.
#ifndef TESTS_CPP_ENGINES_H_
#define TESTS_CPP_ENGINES_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/cpp/manual_clock.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/status_matchers.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/engine.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {

// The status that `done` got, and how often.  Thread-safe.
class Completion {
 public:
  void Done(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    // A copy of its own: Statuses share their text, and the count of who shares
    // it is in TensorFlow's library, where TSan does not see it.
    status_ = absl::Status(status.code(), status.message());
    ++calls_;
    called_.notify_all();
  }

  // Waits for `done`; gives up after half a minute.
  absl::Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!called_.wait_for(lock, std::chrono::seconds(30),
                          [this] { return calls_ > 0; })) {
      return absl::UnknownError("done was never called");
    }
    return status_;
  }

  int calls() {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable called_;
  absl::Status status_;
  int calls_ = 0;
};

// One rank's part in a collective of floats: its request, memory and outcome.
// Must outlive the collective.
class FloatEntry {
 public:
  // The entry is in place, unless its kind has an output apart from the input.
  FloatEntry(std::string name, std::vector<float> values)
      : data_(std::move(values)) {
    request.name = name;
    request.tensors = {{std::move(name), {static_cast<int64_t>(data_.size())}}};
  }

  void SubmitTo(Engine& engine) {
    TensorEntry entry = callbacks;
    entry.request = request;
    if (request.kind == CollectiveKind::kReduceScatter) {
      apart_.resize(data_.size());
      entry.buffers = {{data_.data(), apart_.data()}};
    } else if (request.tensors.size() <= 1) {
      entry.buffers = {{data_.data(), data_.data()}};
    } else {  // one behind the other
      float* next = data_.data();
      for (const TensorInfo& tensor : request.tensors) {
        entry.buffers.push_back({next, next});
        next += tensor.dims[0];
      }
    }
    entry.allocate_output = [this](int, const std::vector<int64_t>& dims) {
      apart_.resize(dims[0]);
      return apart_.data();
    };
    entry.on_received_splits = [](const std::vector<int64_t>&) {};
    entry.on_joined = [this](int rank) { last_joined = rank; };
    entry.done = [this](const absl::Status& status) {
      // The memory is freed here, so that AddressSanitizer sees a later use.
      if (!status.ok()) {
        std::vector<float>().swap(data_);
        std::vector<float>().swap(apart_);
      }
      if (callbacks.done) callbacks.done(status);
      outcome.Done(status);
    };
    engine.Submit(std::move(entry));
  }

  const std::vector<float>& result() const {
    return request.kind == CollectiveKind::kAllgather ||
                   request.kind == CollectiveKind::kAlltoall ||
                   request.kind == CollectiveKind::kReduceScatter
               ? apart_
               : data_;
  }

  // May be changed before it is submitted.
  CollectiveRequest request;
  TensorEntry callbacks;  // what else the entry gets
  Completion outcome;
  int last_joined = -1;  // of a join, once it is done

 private:
  std::vector<float> data_, apart_;
};

// The same entry on every rank.
using Entries = std::vector<std::unique_ptr<FloatEntry>>;

// `count` floats, each of them `rank` + 1.
inline Entries MakeEntries(int size, const std::string& name, size_t count,
                           CollectiveKind kind = CollectiveKind::kAllreduce) {
  Entries entries;
  for (int rank = 0; rank < size; ++rank) {
    entries.push_back(std::make_unique<FloatEntry>(
        name, std::vector<float>(count, static_cast<float>(rank + 1))));
    CollectiveRequest& request = entries.back()->request;
    request.kind = kind;
    if (kind == CollectiveKind::kJoin || kind == CollectiveKind::kBarrier) {
      request.tensors.clear();
    }
  }
  return entries;
}

// A join of every rank.
inline Entries MakeJoins(int size) {
  return MakeEntries(size, "join", 0, CollectiveKind::kJoin);
}

// All ranks but `left_out`.
inline std::vector<int> RanksBut(int left_out, int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != left_out) ranks.push_back(rank);
  }
  return ranks;
}

// For a Job's `change`: its engines have these clocks, which outlive it.
inline std::function<void(int rank, ProcessSet&)> By(const RankClocks& clocks) {
  return [&clocks](int rank, ProcessSet& set) { set.clock = &clocks.of(rank); };
}

// A whole job.
class Job {
 public:
  using Transports = std::vector<std::unique_ptr<Transport>>;

  explicit Job(int size, const Options& options = ShortOptions())
      : Job(MakeInProcessTransports(size), MakeInProcessTransports(size),
            options) {}

  // Runs engines on process sets that `change` has changed.
  Job(int size, const std::function<void(int rank, ProcessSet&)>& change,
      const Options& options = ShortOptions())
      : Job(MakeInProcessTransports(size), MakeInProcessTransports(size),
            options, change) {}
  Job(Transports control, Transports data, const Options& options,
      const std::function<void(int rank, ProcessSet&)>& change)
      : Job(std::move(control), std::move(data), options, /*id=*/0,
            /*world_ranks=*/{}, /*on_lost=*/nullptr, change) {}

  // Runs the engines of a process set, if `world_ranks` are given.
  Job(Transports control, Transports data, const Options& options, int id = 0,
      const std::vector<int32_t>& world_ranks = {},
      const std::function<void(const absl::Status&)>& on_lost = nullptr,
      const std::function<void(int rank, ProcessSet&)>& change = nullptr)
      : engines_(control.size()), started_(control.size()) {
    OnThreads(size(), [&](int rank) {
      ProcessSet process_set;
      process_set.control = std::move(control[rank]);
      process_set.data = std::move(data[rank]);
      process_set.id = id;
      process_set.world_ranks = world_ranks;
      process_set.on_lost = on_lost;
      if (change) change(rank, process_set);
      auto engine =
          Engine::Start(options, std::move(process_set), CpuKernels());
      started_[rank] = engine.status();
      if (engine.ok()) engines_[rank] = *std::move(engine);
    });
  }

  // Ends all engines at once, because ranks with GPUs wait for one another
  // before they free their memory.
  ~Job() {
    OnThreads(size(), [this](int rank) { engines_[rank].reset(); });
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Nothing stalls and nothing is fused unless a test wants it.
  static Options ShortOptions() {
    Options options;
    options.fusion_threshold_bytes = 0;
    options.segment_bytes = 1000;
    return options;
  }

  int size() const { return static_cast<int>(engines_.size()); }
  // The status of Engine::Start.
  const absl::Status& started(int rank) const { return started_[rank]; }
  // REQUIRES: started(rank) is OK.
  Engine& engine(int rank) { return *engines_[rank]; }

  void Submit(const Entries& entries) {
    for (int rank = 0; rank < size(); ++rank) {
      entries[rank]->SubmitTo(engine(rank));
    }
  }
  // On these ranks.
  void Submit(const Entries& entries, const std::vector<int>& ranks) {
    for (const int rank : ranks) entries[rank]->SubmitTo(engine(rank));
  }

  void Shutdown() {
    for (const auto& engine : engines_) {
      if (engine != nullptr) engine->Shutdown();
    }
  }

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<absl::Status> started_;
};

// That an allreduce of `entries` gave the sum on every rank.
inline void ExpectSums(const Entries& entries) {
  const auto size = static_cast<float>(entries.size());
  const float sum = size * (size + 1) / 2;
  for (const auto& entry : entries) {
    const absl::Status status = entry->outcome.Wait();
    EXPECT_TRUE(status.ok()) << entry->request.name << ": " << status;
    EXPECT_EQ(entry->outcome.calls(), 1) << entry->request.name;
    const std::vector<float> expected(entry->result().size(), sum);
    EXPECT_TRUE(entry->result() == expected) << entry->request.name;
  }
}

// That all are done without an error.
template <typename Range>
void ExpectOk(const Range& entries) {
  for (const auto& entry : entries) {
    EXPECT_EQ(entry->outcome.Wait(), absl::OkStatus());
  }
}

// That `done` got this code, or any, and a message with `text`; once.
inline void ExpectError(FloatEntry& entry, std::optional<absl::StatusCode> code,
                        absl::string_view text) {
  const absl::Status status = entry.outcome.Wait();
  EXPECT_FALSE(status.ok()) << entry.request.name;
  EXPECT_EQ(status.code(), code.value_or(status.code())) << status;
  EXPECT_THAT(status, HasMessage(std::string(text)));
  EXPECT_EQ(entry.outcome.calls(), 1);
}
inline void ExpectErrors(const Entries& entries,
                         std::optional<absl::StatusCode> code,
                         absl::string_view text) {
  for (const auto& entry : entries) ExpectError(*entry, code, text);
}

// That the job still works.
inline void ExpectWorks(Job& job, const std::string& name = "still works") {
  const Entries entries = MakeEntries(job.size(), name, 100);
  job.Submit(entries);
  ExpectSums(entries);
}

}  // namespace tfring

#endif  // TESTS_CPP_ENGINES_H_
