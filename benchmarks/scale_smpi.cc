// The allreduces of benchmarks/scale.cc over tfring_ops/transport/mpi and the
// MPI of a simulator, SimGrid's SMPI, beside their times over the simulated
// transport of tests/cpp/simulated_job.h: `make scale-smpi`.  The two networks
// have no code in common, and each link has the same latency and rate in both.
#include <sys/wait.h>
#include <unistd.h>
#include <xbt/log.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/clusters.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_kernels.h"
#include "tfring_ops/algorithms/adaptive/cost_measurement.h"
#include "tfring_ops/algorithms/adaptive/cost_model.h"
#include "tfring_ops/base/clock.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/mpi/mpi.h"
#define SMPI_NO_OVERRIDE_MALLOC
#include <smpi/mpi.h>

namespace tfring {
namespace {

namespace s4u = simgrid::s4u;

// For more bytes, those of all ranks together, SMPI takes minutes for a plan.
constexpr int64_t kMostBytes = 512 * kSizes[1];

double Now() { return s4u::Engine::get_clock(); }

class SmpiClock final : public Clock {
 public:
  time_point Now() const override {
    return time_point(std::chrono::duration_cast<duration>(
        std::chrono::duration<double>(tfring::Now())));
  }
  void WaitFor(std::condition_variable& /*changed*/,
               std::unique_lock<std::mutex>& /*lock*/,
               duration /*timeout*/) const override {
    std::abort();
  }
};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::_Exit(1);
}

// Returns a host for each rank.
std::vector<s4u::Host*> Connect(const SimulatedNetwork& network) {
  s4u::NetZone* const zone = s4u::create_full_zone("cluster");
  const int size = network.nodes * network.ranks_per_node;
  const auto links = [&](const char* name, int count, SimulatedLink kind) {
    std::vector<s4u::LinkInRoute> links;
    for (int i = 0; i < count; ++i) {
      links.emplace_back(
          zone->create_link(absl::StrCat(name, i), kind.bytes_per_second)
              ->set_latency(kind.latency_seconds / 2)
              ->seal());
    }
    return links;
  };
  const auto memory_out = links("memory_out", size, network.within);
  const auto memory_in = links("memory_in", size, network.within);
  const int across = network.link_per_rank ? size : network.nodes;
  const auto out = links("out", across, network.across);
  const auto in = links("in", across, network.across);
  std::vector<s4u::Host*> hosts;
  for (int rank = 0; rank < size; ++rank) {
    hosts.push_back(zone->create_host(absl::StrCat("rank", rank), 1e9)->seal());
  }
  const int per_link = size / across;
  for (int a = 0; a < size; ++a) {
    for (int b = 0; b < size; ++b) {
      if (a == b) continue;
      const bool within =
          a / network.ranks_per_node == b / network.ranks_per_node;
      zone->add_route(
          hosts[a]->get_netpoint(), hosts[b]->get_netpoint(), nullptr, nullptr,
          within ? std::vector<s4u::LinkInRoute>{memory_out[a], memory_in[b]}
                 : std::vector<s4u::LinkInRoute>{out[a / per_link],
                                                 in[b / per_link]},
          /*symmetrical=*/false);
    }
  }
  zone->seal();
  return hosts;
}

struct Case {
  int64_t bytes;
  AllreducePlan plan;
  double seconds;  // of the simulated job
};

// The ranks of SMPI.
class SmpiRun {
 public:
  SmpiRun(const Cluster& cluster, const Layout& layout,
          const std::vector<Case>& cases)
      : cluster_(cluster),
        layout_(layout),
        cases_(cases),
        kernels_([](double seconds) { s4u::this_actor::sleep_for(seconds); },
                 cluster.reduced_bytes_per_second,
                 /*most_bytes=*/kSizes[2]) {}

  // The life of a rank.
  void RunRank() {
    MPI_Init(nullptr, nullptr);
    {
      auto transport = MakeMpiTransport(MPI_Comm_c2f(MPI_COMM_WORLD), 0);
      Check(transport.status());
      Workspace scratch(kernels_);
      const RingContext context{**transport, kernels_, cluster_.segment_bytes,
                                scratch};
      const bool prints = context.transport.rank() == 0;
      Costs costs;
      const double measuring = Seconds([&] {
        const auto measured = MeasureCosts(context, SmpiClock());
        if (measured.ok()) costs = *measured;
        return measured.status();
      });
      if (prints) {
        std::printf("\n%d ranks: %s (costs measured in %.1f ms)\n",
                    layout_.ranks(), cluster_.name, measuring * 1e3);
        std::printf("%10s  %-36s %10s %10s %8s\n", "bytes", "plan", "SMPI, ms",
                    "job, ms", "ratio");
      }
      for (const Case& one : cases_) {
        const double seconds = Seconds([&] {
          return Allreduce(**transport, kernels_, cluster_, one.plan,
                           one.bytes);
        });
        if (prints) Print(one, seconds, costs);
      }
    }
    MPI_Finalize();
    ++ended_;
  }

  // How many ranks have ended.  If all of the others wait, SMPI ends without
  // them.
  int ended() const { return ended_; }

 private:
  // Runs `body` on every rank from the same time on.  Returns the seconds until
  // the last rank has ended.
  template <typename Body>
  double Seconds(const Body& body) {
    MPI_Barrier(MPI_COMM_WORLD);
    begin_ = std::max(begin_, Now() + 1e-3);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = begin_;
    s4u::this_actor::sleep_until(begin);
    Check(body());
    end_ = Now();  // the last rank's remains, because time only grows
    MPI_Barrier(MPI_COMM_WORLD);
    return end_ - begin;
  }

  void Print(const Case& one, double seconds, const Costs& costs) const {
    const std::string chosen =
        Fastest(Plans(layout_, AllreduceAlgorithm::kAuto), layout_, costs,
                one.bytes)
            .Name();
    std::printf("%10ld  %-36s %10.3f %10.3f %8.3f%s\n",
                static_cast<long>(one.bytes), one.plan.Name().c_str(),
                seconds * 1e3, one.seconds * 1e3, one.seconds / seconds,
                one.plan.Name() == chosen ? "  auto" : "");
    std::fflush(stdout);
  }

  const Cluster& cluster_;
  const Layout layout_;
  const std::vector<Case>& cases_;
  const SimulatedKernels kernels_;
  double begin_ = 0, end_ = 0;  // of what all ranks run
  int ended_ = 0;
};

// Returns every plan at every size, with the simulated job's times.
std::vector<Case> Cases(const Cluster& cluster, const Layout& layout) {
  SimulatedJob job(cluster.Network(layout.nodes));
  const SimulatedKernels kernels([&](double seconds) { job.Sleep(seconds); },
                                 cluster.reduced_bytes_per_second,
                                 /*most_bytes=*/kSizes[2]);
  job.LeaveOut(kernels.shared_memory());
  std::vector<Case> cases;
  for (const int64_t bytes : kSizes) {
    if (bytes * layout.ranks() > kMostBytes) continue;
    for (const auto& plan : Plans(layout, AllreduceAlgorithm::kAuto)) {
      const auto seconds = job.Run([&](Transport& transport) {
        return Allreduce(transport, kernels, cluster, plan, bytes);
      });
      Check(seconds.status());
      cases.push_back({bytes, plan, *seconds});
    }
  }
  return cases;
}

// Runs all plans on `nodes` nodes, and returns the exit status of this process,
// which can have one engine.
int Run(const Cluster& cluster, int nodes) {
  const Layout layout{nodes, kRanksPerNode};
  const std::vector<Case> cases = Cases(cluster, layout);
  SmpiRun run(cluster, layout, cases);

  s4u::Engine engine("scale_smpi");
  xbt_log_control_set("root.thresh:critical");
  // A link has exactly its latency and its rate, in each direction by itself,
  // and the pieces of transport/mpi are eager messages.
  for (const char* const option :
       {"network/model:CM02", "network/crosstraffic:0",
        "smpi/async-small-thresh:65536", "smpi/simulate-computation:no",
        "smpi/test:0"}) {
    s4u::Engine::set_config(option);
  }
  SMPI_init();
  const auto hosts = Connect(cluster.Network(nodes));
  SMPI_app_instance_register("job", nullptr, layout.ranks());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const auto actor =
        s4u::Actor::init(absl::StrCat("rank", rank), hosts[rank]);
    actor->set_property("instance_id", "job");
    actor->set_property("rank", absl::StrCat(rank));
    actor->start([&run] { run.RunRank(); });
  }
  engine.run();
  SMPI_finalize();
  return run.ended() == layout.ranks() ? 0 : 1;
}

}  // namespace
}  // namespace tfring

// The numbers of nodes, of 8 ranks each, may be given.
int main(int argc, char** argv) {
  std::vector<int> nodes{8, 64};
  if (argc > 1) nodes.clear();
  for (int i = 1; i < argc; ++i) nodes.push_back(std::atoi(argv[i]));
  for (const tfring::Cluster& cluster : tfring::kClusters) {
    if (cluster.uplinks_per_leaf > 0) continue;
    for (const int number : nodes) {
      const pid_t child = fork();
      if (child == 0) return tfring::Run(cluster, number);
      int status = 0;
      if (waitpid(child, &status, 0) != child || status != 0) return 1;
    }
  }
}
