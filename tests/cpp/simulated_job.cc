#include "tests/cpp/simulated_job.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/cpp/fibers.h"
#include "tfring_ops/base/status_macros.h"

namespace tfring {
namespace {

// The least time between two rounds of an engine's polling: see polling.h.
constexpr double kAttendSeconds = 20e-6;

}  // namespace

class SimulatedJob::SimulatedClock final : public Clock {
 public:
  explicit SimulatedClock(const Fibers& fibers) : fibers_(fibers) {}
  time_point Now() const override {
    return time_point(std::chrono::duration_cast<duration>(
        std::chrono::duration<double>(fibers_.now())));
  }
  // Nothing in a simulated job waits for another thread.
  void WaitFor(std::condition_variable& /*changed*/,
               std::unique_lock<std::mutex>& /*lock*/,
               duration /*timeout*/) const override {
    std::abort();
  }

 private:
  const Fibers& fibers_;
};

// ---- The network ----

class SimulatedJob::Network {
 public:
  explicit Network(const SimulatedNetwork& network)
      : network_(network),
        jitter_(network.jitter_seed),
        memory_out_(size(), {1 / network.within.bytes_per_second}),
        memory_in_(memory_out_),
        out_(network.link_per_rank ? size() : network.nodes,
             {1 / network.across.bytes_per_second}),
        in_(out_),
        streams_(out_.size()),
        place_(network.nodes) {
    std::iota(place_.begin(), place_.end(), 0);
    if (network.placement_seed != 0) {
      std::shuffle(place_.begin(), place_.end(),
                   std::mt19937(network.placement_seed));
    }
    if (network.nodes_per_leaf == 0) return;
    const int leaves = place_.size() / network.nodes_per_leaf + 1;
    up_.assign(leaves * network.uplinks_per_leaf, out_[0]);
    down_ = up_;
  }

  int size() const { return network_.nodes * network_.ranks_per_node; }
  int node_of(int rank) const { return rank / network_.ranks_per_node; }
  double handling_seconds() const { return network_.handling_seconds; }

  struct Times {
    double left;     // the sender's memory is free
    double arrived;  // the receiver has the last byte
  };
  Times Send(int from, int to, size_t bytes, double now) {
    const bool across = node_of(from) != node_of(to);
    double head = now, tail = now, left = 0;
    for (Link* const link :
         across ? PathAcross(from, to)
                : std::vector<Link*>{&memory_out_[from], &memory_in_[to]}) {
      head = std::max(head, link->free);
      link->free = head + static_cast<double>(bytes) * link->seconds_per_byte;
      tail = std::max(tail, link->free);
      if (left == 0) left = link->free;
    }
    const SimulatedLink& kind = across ? network_.across : network_.within;
    const double late = std::uniform_real_distribution<double>()(jitter_) *
                        network_.jitter_seconds;
    return {left, tail + kind.latency_seconds + late};
  }

  int TakeStreams() {
    size_t most = 0;
    for (auto& pairs : streams_) {
      most = std::max(most, pairs.size());
      pairs.clear();
    }
    return static_cast<int>(most);
  }

 private:
  struct Link {
    double seconds_per_byte;
    double free = 0;  // when it has taken all messages so far
  };

  std::vector<Link*> PathAcross(int from, int to) {
    const int a = node_of(from), b = node_of(to);
    const int out = network_.link_per_rank ? from : a;
    streams_[out].insert(int64_t{from} * size() + to);
    std::vector<Link*> path{&out_[out]};
    if (const int nodes = network_.nodes_per_leaf; nodes > 0) {
      const int leaf_a = place_[a] / nodes, leaf_b = place_[b] / nodes;
      const int links = network_.uplinks_per_leaf;
      if (leaf_a != leaf_b) {
        path.push_back(&up_[leaf_a * links + place_[b] % links]);
        path.push_back(&down_[leaf_b * links + place_[b] % links]);
      }
    }
    path.push_back(&in_[network_.link_per_rank ? to : b]);
    return path;
  }

  const SimulatedNetwork network_;
  std::mt19937 jitter_;
  std::vector<Link> memory_out_, memory_in_;          // by rank
  std::vector<Link> out_, in_;                        // by node, or by rank
  std::vector<Link> up_, down_;                       // of the leaves
  std::vector<std::unordered_set<int64_t>> streams_;  // of out_
  std::vector<int> place_;  // by node, among the leaves
};

// ---- A rank's transport ----

class SimulatedJob::Rank final : public Transport {
 public:
  Rank(int rank, int channel, SimulatedJob& job)
      : rank_(rank), channel_(channel), job_(job), from_(job.size()) {}
  ~Rank() override { job_.channels_[channel_].ranks[rank_] = nullptr; }

  int rank() const override { return rank_; }
  int size() const override { return job_.size(); }
  int node_of(int peer) const override { return job_.network_->node_of(peer); }
  bool TakesDeviceMemory(int /*peer*/) const override { return false; }

  OperationId StartSend(int peer, ConstBytes data) override {
    job_.Sleep(job_.network_->handling_seconds());
    const Network::Times times =
        job_.network_->Send(rank_, peer, data.size(), job_.now());
    Rank* const receiver = job_.channels_[channel_].ranks[peer];
    // The messages of an engine that has ended are lost.
    if (receiver == nullptr) return Claim({times.left, peer, false});
    Messages& messages = receiver->From(rank_);
    // A message does not overtake the one before it.
    messages.last = std::max(messages.last, times.arrived);
    Arrival& arrival = messages.arrivals.emplace_back();
    arrival.time = messages.last;
    arrival.bytes = data.size();
    if (!job_.IsLeftOut(data)) arrival.data.assign(data.begin(), data.end());
    receiver->Match(rank_);
    return Claim({times.left, peer, /*is_receive=*/false});
  }

  OperationId StartRecv(int peer, Bytes data) override {
    const OperationId id = Claim({kNever, peer, /*is_receive=*/true});
    From(peer).receives.push_back({id, data});
    Match(peer);
    return id;
  }

  absl::StatusOr<bool> Test(OperationId id) override {
    if (id == kNoOperation) return true;
    const Operation operation = operations_[id - 1];
    const bool is_done = operation.time <= job_.now();
    if (!is_done && job_.failure_.ok() &&
        !job_.fibers_->IsDead(operation.peer)) {
      return false;
    }
    operations_[id - 1].time = kNever;
    free_.push_back(id);
    if (is_done) {
      if (operation.is_receive) job_.Sleep(job_.network_->handling_seconds());
      return true;
    }
    if (!job_.failure_.ok()) return job_.failure_;
    return absl::UnavailableError(
        absl::StrCat("rank ", operation.peer, " is lost"));
  }

  absl::Status Wait(OperationId id) override {
    while (true) {
      const absl::StatusOr<bool> done = Test(id);
      if (!done.ok()) return done.status();
      if (*done) return absl::OkStatus();
      if (attend_) {
        TFRING_RETURN_IF_ERROR(attend_());
        if (std::exchange(waits().has_news, false)) {
          job_.fibers_->Wake(rank_, job_.now() + kAttendSeconds);
        }
      }
      const double time = operations_[id - 1].time;
      if (time != kNever) job_.fibers_->Wake(rank_, time);
      awaited_ = id;
      waits().for_any = attend_ != nullptr;
      job_.fibers_->Yield();
      waits().for_any = false;
      awaited_ = kNoOperation;
    }
  }

  void SetAttendant(std::function<absl::Status()> attend) override {
    attend_ = std::move(attend);
  }

  // Returns when the first operation completes that was not complete at the
  // time `since`.
  double NextAfter(double since) const {
    double next = kNever;
    for (const Operation& operation : operations_) {
      if (operation.time > since) next = std::min(next, operation.time);
    }
    return next;
  }

  absl::Status Progress() override { return job_.failure_; }

  void Abort(const absl::Status& reason) override {
    job_.failure_.Update(reason);
    job_.fibers_->WakeAll();
  }

 private:
  struct Operation {
    double time;  // when it is complete
    int peer;
    bool is_receive;
  };
  struct Arrival {
    double time;
    size_t bytes;
    std::vector<std::byte> data;  // empty if it is left out
  };
  struct Receive {
    OperationId id;
    Bytes data;
  };
  struct Messages {
    std::deque<Arrival> arrivals;
    std::deque<Receive> receives;
    double last = 0;  // the time of the last arrival
  };

  // Few ranks hear from all others.
  Messages& From(int peer) {
    if (from_[peer] == nullptr) from_[peer] = std::make_unique<Messages>();
    return *from_[peer];
  }

  OperationId Claim(Operation operation) {
    if (free_.empty()) {
      operations_.emplace_back();
      free_.push_back(operations_.size());
    }
    const OperationId id = free_.back();
    free_.pop_back();
    operations_[id - 1] = operation;
    return id;
  }

  void Match(int peer) {
    Messages& messages = From(peer);
    while (!messages.arrivals.empty() && !messages.receives.empty()) {
      const Arrival& arrival = messages.arrivals.front();
      const Receive& receive = messages.receives.front();
      if (arrival.bytes != receive.data.size()) {
        job_.failure_.Update(absl::InternalError(absl::StrCat(
            "rank ", peer, " has sent ", arrival.bytes, " bytes, and rank ",
            rank_, " receives ", receive.data.size())));
      } else if (!arrival.data.empty()) {
        // Before it has arrived: nobody may read it by then.
        std::memcpy(receive.data.data(), arrival.data.data(), arrival.bytes);
      }
      const double time = std::max(job_.now(), arrival.time);
      operations_[receive.id - 1].time = time;
      if (waits().for_any || awaited_ == receive.id) {
        waits().has_news = true;
        job_.fibers_->Wake(rank_, time);
      }
      messages.arrivals.pop_front();
      messages.receives.pop_front();
    }
  }

  Waits& waits() { return job_.waits_[rank_]; }

  const int rank_;
  const int channel_;
  SimulatedJob& job_;
  std::function<absl::Status()> attend_;
  std::vector<std::unique_ptr<Messages>> from_;  // by rank
  std::vector<Operation> operations_;            // by ID, from 1 on
  std::vector<OperationId> free_;                // IDs
  OperationId awaited_ = kNoOperation;
};

SimulatedJob::SimulatedJob(const SimulatedNetwork& network)
    : network_(std::make_unique<Network>(network)),
      fibers_(std::make_unique<Fibers>(network_->size())),
      clock_(std::make_unique<SimulatedClock>(*fibers_)),
      waits_(network_->size()) {
  for (int channel = 0; channel < kChannels; ++channel) {
    for (int rank = 0; rank < size(); ++rank) {
      channels_[channel].kept.push_back(
          std::make_unique<Rank>(rank, channel, *this));
      channels_[channel].ranks.push_back(channels_[channel].kept.back().get());
    }
  }
}

SimulatedJob::~SimulatedJob() = default;

int SimulatedJob::size() const { return network_->size(); }

absl::StatusOr<double> SimulatedJob::Run(
    const std::function<absl::Status(Transport&)>& body) {
  const double begin = now();
  absl::Status status;
  const std::vector<int> waiting = fibers_->Run(
      [&](int rank) { status.Update(body(*channels_[0].ranks[rank])); });
  if (!waiting.empty()) {
    status.Update(absl::InternalError(absl::StrCat(
        "these ranks wait for ever: ", absl::StrJoin(waiting, ", "))));
  }
  if (!status.ok()) return status;
  return now() - begin;
}

void SimulatedJob::Sleep(double seconds) { fibers_->Sleep(seconds); }

void SimulatedJob::Pause(double since, double longest_seconds) {
  const int rank = fibers_->current();
  double next = now() + longest_seconds;
  for (const Channel& channel : channels_) {
    if (const Rank* const transport = channel.ranks[rank]) {
      next = std::min(next, transport->NextAfter(since));
    }
  }
  if (next <= now()) return;
  if (next != kNever) fibers_->Wake(rank, next);
  waits_[rank].for_any = true;
  fibers_->Yield();
  waits_[rank].for_any = false;
}

std::unique_ptr<Transport> SimulatedJob::Take(int channel) {
  return std::move(channels_[channel].kept[fibers_->current()]);
}

void SimulatedJob::At(double seconds, std::function<void()> call) {
  const int rank = fibers_->current();
  fibers_->At(rank, seconds, [this, rank, call = std::move(call)] {
    waits_[rank].has_news = true;
    call();
  });
}

double SimulatedJob::now() const { return fibers_->now(); }

const Clock& SimulatedJob::clock() const { return *clock_; }

void SimulatedJob::Kill(int rank, double seconds) {
  fibers_->Kill(rank, seconds);
}

void SimulatedJob::LeaveOut(ConstBytes memory) { left_out_ = memory; }

bool SimulatedJob::IsLeftOut(ConstBytes data) const {
  return data.data() >= left_out_.data() &&
         data.data() < left_out_.data() + left_out_.size();
}

int SimulatedJob::TakeStreams() { return network_->TakeStreams(); }

}  // namespace tfring
