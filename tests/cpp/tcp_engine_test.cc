// The end of a job over TCP, with shared memory within a node.  Some jobs run
// in one process.  Others have one process per rank, and the test kills one
// process.  property_test.cc tests the collectives of such jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/cpp/engines.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/status_matchers.h"
#include "tests/cpp/tcp_sockets.h"
#include "tfring_ops/transport/shared_memory/node_memory.h"
#include "tfring_ops/transport/tcp/tcp.h"

namespace tfring {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

constexpr int kLongestMessage = 300'000;  // floats: more than a ring takes

class TcpEngineTest : public testing::TestWithParam<std::tuple<Medium, int>> {
 protected:
  static Medium medium() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }

  // With one more channel for each bucket in flight.
  static Job MakeJob() {
    Transports more = MakeTransports(medium(), size());
    return Job(MakeTransports(ControlBeside(medium()), size()),
               MakeTransports(medium(), size()), Job::ShortOptions(),
               [&](int rank, ProcessSet& process_set) {
                 process_set.make_data = [&, rank] {
                   return std::move(more[rank]);
                 };
               });
  }
};
INSTANTIATE_TEST_SUITE_P(
    Media, TcpEngineTest,
    testing::Combine(testing::Values(Medium::kTcp, Medium::kTcpLater,
                                     Medium::kTcpOneNode,
                                     Medium::kTcpNodesOfTwo),
                     testing::Values(1, 2, 3, 4)));

TEST_P(TcpEngineTest, AnAbortEndsACollectiveOnEveryRank) {
  Job job = MakeJob();
  ExpectWorks(job);
  // These ranks wait for rank 0, which submits nothing.
  const Entries entries = MakeEntries(size(), "late", kLongestMessage);
  for (int rank = 1; rank < size(); ++rank) {
    entries[rank]->SubmitTo(job.engine(rank));
  }
  const absl::Status reason = absl::UnavailableError("rank 3 of 5 is lost");
  job.engine(size() - 1).Abort(reason);
  for (int rank = 1; rank < size(); ++rank) {
    const absl::Status status = entries[rank]->outcome.Wait();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status, HasMessage(std::string(reason.message())));
  }
}

// ---- Ranks that are processes ----

// Runs one rank of the job in its process until a collective fails.  Returns
// the exit status of the process.
int TrainUntilRankIsLost(int rank, const std::vector<int>& nodes,
                         const std::vector<int>& control,
                         const std::vector<int>& data, int started) {
  const auto make_transport = [&](const std::vector<int>& sockets) {
    return ShareWithinNodes(
               MakeTcpTransport(rank, nodes, sockets, /*timeout_seconds=*/60)
                   .value(),
               /*timeout_seconds=*/60, SharedMemory::kWithinNodes)
        .value();
  };
  ProcessSet process_set;
  process_set.control = make_transport(control);
  process_set.data = make_transport(data);
  auto engine =
      Engine::Start(Job::ShortOptions(), std::move(process_set), CpuKernels())
          .value();
  for (int step = 0;; ++step) {
    FloatEntry entry("step", std::vector<float>(kLongestMessage, 1.0F));
    entry.SubmitTo(*engine);
    const absl::Status status = entry.outcome.Wait();
    if (!status.ok()) return absl::IsUnavailable(status) ? 0 : 2;
    if (entry.result().back() != static_cast<float>(nodes.size())) return 3;
    if (step == 3 && write(started, "", 1) != 1) return 4;
  }
}

class LostProcessTest : public testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Nodes, LostProcessTest,
                         testing::Values(std::vector<int>{0, 0},
                                         std::vector<int>{0, 0, 0},
                                         std::vector<int>{0, 0, 1, 1},
                                         std::vector<int>{0, 1, 1}));

TEST_P(LostProcessTest, EndsTheCollectivesOfTheOthers) {
  const std::vector<int>& nodes = GetParam();
  const int size = static_cast<int>(nodes.size());
  const auto control = ConnectedSockets(size), data = ConnectedSockets(size);
  std::array<int, 2> started;
  ASSERT_EQ(pipe(started.data()), 0);
  // Forks while this process has one thread.
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    processes.push_back(fork());
    ASSERT_GE(processes.back(), 0);
    if (processes.back() > 0) continue;
    for (int other = 0; other < size; ++other) {
      for (int peer = 0; peer < size && other != rank; ++peer) {
        close(control[other][peer]);
        close(data[other][peer]);
      }
    }
    alarm(60);
    _exit(TrainUntilRankIsLost(rank, nodes, control[rank], data[rank],
                               started[1]));
  }
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < size; ++peer) {
      close(control[rank][peer]);
      close(data[rank][peer]);
    }
  }
  close(started[1]);
  for (int rank = 0; rank < size; ++rank) {
    char byte;
    ASSERT_EQ(read(started[0], &byte, 1), 1);
  }
  close(started[0]);
  kill(processes.back(), SIGKILL);
  for (int rank = 0; rank < size; ++rank) {
    int status = -1;
    ASSERT_EQ(waitpid(processes[rank], &status, 0), processes[rank]);
    if (rank == size - 1) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << ": " << status;
    }
  }
}

}  // namespace
}  // namespace tfring
