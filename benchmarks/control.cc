// The control of a repeated step, for docs/scaling.md: how long after the last
// rank's request all ranks know of it.  The state machines are real; messages
// are modelled, and so is the time that they take.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/negotiation/cached_schedule.h"
#include "tfring_ops/engine/negotiation/coordinator.h"
#include "tfring_ops/engine/negotiation/progress_tree.h"

namespace tfring {
namespace {

constexpr int kRanksPerNode = 8;
// A rank's time to send or to receive one, and what one is on its way.
constexpr double kHandlingMicroseconds = 1;
constexpr double kWithinMicroseconds = 2, kAcrossMicroseconds = 20;
// As many as ResNet-50 has.
constexpr int kTensors = 161;

CollectiveRequest MakeRequest(int tensor) {
  CollectiveRequest request;
  request.name = "gradient " + std::to_string(tensor);
  request.tensors = {{request.name, {1000}}};
  return request;
}

// One item of a cached schedule that all ranks request at the same time.
class Simulation {
 public:
  Simulation(int size, int max_peers) : ranks_(size) {
    std::vector<int> nodes;
    for (int rank = 0; rank < size; ++rank) {
      nodes.push_back(rank / kRanksPerNode);
    }
    for (int rank = 0; rank < size; ++rank) {
      Rank& one = ranks_[rank];
      one.neighbors = NeighborsOf(rank, nodes, max_peers);
      one.schedule.emplace(std::vector<CollectiveRequest>{MakeRequest(0)},
                           one.neighbors);
    }
  }

  void Run() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ranks_[rank].schedule->Submit(MakeRequest(0));
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

  double Microseconds() const {
    double last = 0;
    for (const Rank& rank : ranks_) last = std::max(last, rank.knows);
    return last;
  }
  // Of the rank that has the most.
  int Messages() const {
    int most = 0;
    for (const Rank& rank : ranks_) most = std::max(most, rank.messages);
    return most;
  }

 private:
  struct Rank {
    ProgressNeighbors neighbors;
    std::optional<CachedSchedule> schedule;
    ProgressUpdate reported, told;
    double now = 0, knows = -1;
    int messages = 0;
  };
  struct Message {
    double arrives;
    int from, to;
    ProgressUpdate update;
    bool operator<(const Message& other) const {
      return arrives > other.arrives;
    }
  };

  void Say(int from) {
    Rank& rank = ranks_[from];
    const ProgressUpdate report = rank.schedule->Report();
    const ProgressUpdate total = rank.schedule->Total();
    if (total.count == 1 && rank.knows < 0) rank.knows = rank.now;
    if (!(report == rank.reported)) {
      for (const int peer : rank.neighbors.peers) Send(from, peer, report);
      if (rank.neighbors.parent >= 0) {
        Send(from, rank.neighbors.parent, report);
      }
      rank.reported = report;
    }
    if (!(total == rank.told)) {
      for (const int child : rank.neighbors.children) Send(from, child, total);
      rank.told = total;
    }
  }

  void Send(int from, int to, const ProgressUpdate& update) {
    Rank& rank = ranks_[from];
    rank.now += kHandlingMicroseconds;
    ++rank.messages;
    const bool within = from / kRanksPerNode == to / kRanksPerNode;
    messages_.push(
        {rank.now + (within ? kWithinMicroseconds : kAcrossMicroseconds), from,
         to, update});
  }

  std::vector<Rank> ranks_;
  std::priority_queue<Message> messages_;
};

// What the coordinator computes in a step without a cached schedule.
double CoordinatorMilliseconds(int size) {
  Options options;
  options.deterministic = true;
  Coordinator coordinator(options, Members(size));
  const auto begin = std::chrono::steady_clock::now();
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    for (int rank = 0; rank < size; ++rank) {
      coordinator.Add(rank, MakeRequest(tensor), begin);
    }
  }
  coordinator.TakeResponses();
  const std::chrono::duration<double, std::milli> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count();
}

void Print() {
  std::puts(
      "| ranks | coordinator, a step | every rank to every other | as it is | "
      "messages of a rank |");
  std::puts("|---|---|---|---|---|");
  for (const int size : {8, 32, 64, 512, 4096}) {
    Simulation all(size, /*max_peers=*/size);
    // Sixteen million messages show no more.
    if (size <= 512) all.Run();
    Simulation used(size, Options().max_progress_peers);
    used.Run();
    std::printf(
        "| %d | %.2f ms | %s | %.3f ms | %d |\n", size,
        CoordinatorMilliseconds(size),
        size <= 512
            ? (std::to_string(all.Microseconds() / 1e3).substr(0, 5) + " ms")
                  .c_str()
            : "",
        used.Microseconds() / 1e3, used.Messages());
  }
}

}  // namespace
}  // namespace tfring

int main() { tfring::Print(); }
