// The control of a repeated step, for docs/scaling.md: how long after the last
// rank's request all ranks know of it, of dense gradients and of sparse ones,
// and how many bytes that takes.  The state machines are real; messages are
// modelled, and so is the time that they take.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/negotiation/cached_schedule.h"
#include "tfring_ops/engine/negotiation/coordinator.h"
#include "tfring_ops/engine/negotiation/messages.h"
#include "tfring_ops/engine/negotiation/progress_tree.h"

namespace tfring {
namespace {

constexpr int kRanksPerNode = 8;
// The time of a rank for each message that it sends or receives, and the time
// of a message on its way.
constexpr double kHandlingMicroseconds = 1;
constexpr double kWithinMicroseconds = 2, kAcrossMicroseconds = 20;
// And for each byte, 10 GB/s.
constexpr double kMicrosecondsPerByte = 1e-4;
// The number of ResNet-50.
constexpr int kTensors = 161;

// A step's requests: dense; sparse, with the rows of the step before or others.
enum class Kind { kDense, kSparse, kSparseAndVaries };

CollectiveRequest MakeRequest(int tensor, Kind kind = Kind::kDense,
                              int64_t rows = 1000) {
  CollectiveRequest request;
  request.name = "gradient " + std::to_string(tensor);
  if (kind == Kind::kDense) {
    request.tensors = {{request.name, {rows}}};
  } else {
    request.kind = CollectiveKind::kAllgather;
    request.tensors = {{request.name, {rows, 64}}};
  }
  return request;
}

// One item of a cached schedule that all ranks request at the same time, in a
// step that is not the first under it.
class Simulation {
 public:
  Simulation(int size, int max_peers, Kind kind) : ranks_(size), kind_(kind) {
    std::vector<int> nodes;
    for (int rank = 0; rank < size; ++rank) {
      nodes.push_back(rank / kRanksPerNode);
    }
    for (int rank = 0; rank < size; ++rank) {
      Rank& one = ranks_[rank];
      one.neighbors = NeighborsOf(rank, nodes, max_peers);
      one.schedule.emplace(std::vector<CollectiveRequest>{MakeRequest(0, kind)},
                           rank, size, one.neighbors);
    }
  }

  void Run() {
    Step(1000);
    for (Rank& rank : ranks_) {
      rank.now = rank.knows = 0;
      rank.messages = rank.bytes = 0;
    }
    Step(kind_ == Kind::kSparseAndVaries ? 999 : 1000);
  }

  double Microseconds() const {
    double last = 0;
    for (const Rank& rank : ranks_) last = std::max(last, rank.knows);
    return last;
  }
  // The largest number of any rank.
  int Messages() const {
    int most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.messages);
    return most;
  }
  int64_t Bytes() const {
    int64_t most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.bytes);
    return most;
  }

 private:
  struct Rank {
    ProgressNeighbors neighbors;
    std::optional<CachedSchedule> schedule;
    double now = 0, knows = 0;
    int messages = 0;
    int64_t bytes = 0;
  };
  struct Message {
    double arrives;
    int from, to;
    ProgressUpdate update;
    bool operator<(const Message& other) const {
      return arrives > other.arrives;
    }
  };

  void Step(int64_t rows) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].schedule->Submit(MakeRequest(0, kind_, rows));
      Say(static_cast<int>(rank));
    }
    while (!messages_.empty()) {
      const Message message = messages_.top();
      messages_.pop();
      Rank& rank = ranks_[message.to];
      rank.now = std::max(rank.now, message.arrives) + kHandlingMicroseconds;
      ++rank.messages;
      if (!rank.schedule->Receive(message.from, message.update).ok()) return;
      Say(message.to);
    }
  }

  void Say(int from) {
    Rank& rank = ranks_[from];
    if (const auto report = rank.schedule->TakeReport()) {
      for (const int peer : rank.neighbors.peers) Send(from, peer, *report);
      if (rank.neighbors.parent >= 0) {
        Send(from, rank.neighbors.parent, *report);
      }
    }
    if (const auto total = rank.schedule->TakeTotal()) {
      for (const int child : rank.neighbors.children) Send(from, child, *total);
    }
    if (!rank.schedule->TakeReady().empty()) rank.knows = rank.now;
  }

  void Send(int from, int to, const ProgressUpdate& update) {
    Rank& rank = ranks_[from];
    const auto bytes = static_cast<int64_t>(Encode(update).size());
    const double on_wire = static_cast<double>(bytes) * kMicrosecondsPerByte;
    rank.now += kHandlingMicroseconds + on_wire;
    ++rank.messages;
    rank.bytes += bytes;
    const bool within = from / kRanksPerNode == to / kRanksPerNode;
    messages_.push(
        {rank.now + (within ? kWithinMicroseconds : kAcrossMicroseconds), from,
         to, update});
  }

  std::vector<Rank> ranks_;
  const Kind kind_;
  std::priority_queue<Message> messages_;
};

// Without a cached schedule, for a step of all tensors.
struct Coordination {
  double milliseconds;  // what the coordinator computes
  int64_t bytes;        // and what it receives and sends
};

Coordination Coordinate(int size, Kind kind) {
  Options options;
  options.deterministic = true;
  Coordinator coordinator(options, Members(size));
  RequestList list;
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    list.requests.push_back(MakeRequest(tensor, kind));
  }
  const auto bytes = static_cast<int64_t>(Encode(list).size());
  const auto begin = std::chrono::steady_clock::now();
  for (const CollectiveRequest& request : list.requests) {
    for (int rank = 0; rank < size; ++rank) {
      coordinator.Add(rank, request, begin);
    }
  }
  const ResponseList response_list = coordinator.TakeResponses();
  const std::chrono::duration<double, std::milli> taken =
      std::chrono::steady_clock::now() - begin;
  const auto answer = static_cast<int64_t>(Encode(response_list).size());
  return {taken.count(), (size - 1) * (bytes + answer)};
}

void Print() {
  std::puts(
      "| ranks | gradients | coordinator, a step | its bytes, for each | every "
      "rank to every other | as it is | messages of a rank | its bytes |");
  std::puts("|---|---|---|---|---|---|---|---|");
  const std::pair<Kind, const char*> kinds[] = {
      {Kind::kDense, "dense"},
      {Kind::kSparse, "sparse"},
      {Kind::kSparseAndVaries, "sparse, other rows each step"}};
  for (const int size : {8, 32, 64, 512, 4096}) {
    for (const auto& [kind, name] : kinds) {
      // All ranks' sizes on all ranks are more than one machine has room for.
      if (size > 512 && kind != Kind::kDense) continue;
      Simulation all(size, /*max_peers=*/size, kind);
      // Sixteen million messages show no more.
      if (size <= 512) all.Run();
      Simulation used(size, Options().max_progress_peers, kind);
      used.Run();
      const Coordination coordination = Coordinate(size, kind);
      std::printf(
          "| %d | %s | %.2f ms | %ld | %s | %.3f ms | %d | %ld |\n", size, name,
          coordination.milliseconds,
          static_cast<long>(coordination.bytes / kTensors),
          size <= 512
              ? (std::to_string(all.Microseconds() / 1e3).substr(0, 5) + " ms")
                    .c_str()
              : "",
          used.Microseconds() / 1e3, used.Messages(),
          static_cast<long>(used.Bytes()));
    }
  }
}

}  // namespace
}  // namespace tfring

int main() { tfring::Print(); }
