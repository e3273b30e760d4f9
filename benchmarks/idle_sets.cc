// What process sets cost that nobody uses, for docs/performance.md: threads,
// wake-ups and CPU time of one rank, whose peers are threads of this process.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/engine.h"
#include "tfring_ops/engine/idle_watch.h"
#include "tfring_ops/engine/process_set.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

constexpr int kSets = 64, kRanks = 2;
constexpr std::chrono::seconds kSettle{3}, kMeasured{10};

struct Usage {
  int threads = 0;
  int64_t wake_ups = 0;
  double cpu_seconds = 0;
};

// Of this process.
Usage Now() {
  Usage usage;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++usage.threads;
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      const std::string key = "voluntary_ctxt_switches:";
      if (line.rfind(key, 0) == 0) {
        usage.wake_ups += std::stoll(line.substr(key.size()));
      }
    }
  }
  rusage times{};
  getrusage(RUSAGE_SELF, &times);
  for (const timeval& time : {times.ru_utime, times.ru_stime}) {
    usage.cpu_seconds += static_cast<double>(time.tv_sec) +
                         static_cast<double>(time.tv_usec) / 1e6;
  }
  return usage;
}

using Engines = std::vector<std::unique_ptr<Engine>>;  // of each rank

Engines Start(int id, const std::vector<std::unique_ptr<IdleWatch>>& watches) {
  auto control = MakeTransports(Medium::kSharedMemory, kRanks);
  auto data = MakeTransports(Medium::kSharedMemory, kRanks);
  Engines engines(kRanks);
  OnThreads(kRanks, [&](int rank) {
    ProcessSet set;
    set.id = id;
    set.world_ranks = {0, 1};
    set.control = std::move(control[rank]);
    set.data = std::move(data[rank]);
    if (!watches.empty()) set.idle_watch = watches[rank].get();
    engines[rank] =
        Engine::Start(Options(), std::move(set), CpuKernels()).value();
  });
  return engines;
}

void Use(const Engines& engines) {
  OnThreads(kRanks, [&](int rank) {
    std::promise<void> done;
    TensorEntry entry;
    entry.request.name = "barrier";
    entry.request.kind = CollectiveKind::kBarrier;
    entry.done = [&](const absl::Status&) { done.set_value(); };
    engines[rank]->Submit(std::move(entry));
    done.get_future().wait();
  });
}

// `used` sets of all are used once.
void Print(const char* what, bool watched, int used) {
  const int threads = Now().threads;
  std::vector<std::unique_ptr<IdleWatch>> watches;
  for (int rank = 0; watched && rank < kRanks; ++rank) {
    watches.push_back(std::make_unique<IdleWatch>());
  }
  std::vector<Engines> sets;
  for (int id = 1; id <= kSets; ++id) {
    sets.push_back(Start(id, watches));
    if (id <= used) Use(sets.back());
  }
  std::this_thread::sleep_for(kSettle);
  const Usage before = Now();
  std::this_thread::sleep_for(kMeasured);
  const Usage after = Now();
  const double seconds = std::chrono::duration<double>(kMeasured).count();
  std::printf(
      "| %s | %d | %.0f | %.2f%% |\n", what, (after.threads - threads) / kRanks,
      static_cast<double>(after.wake_ups - before.wake_ups) / seconds / kRanks,
      (after.cpu_seconds - before.cpu_seconds) / seconds / kRanks * 100);
  for (const Engines& set : sets) {
    OnThreads(kRanks, [&](int rank) { set[rank]->Shutdown(); });
  }
}

}  // namespace
}  // namespace tfring

int main() {
  std::puts("| 64 process sets | threads | wake-ups a second | of a core |");
  std::puts("|---|---|---|---|");
  tfring::Print("each with a thread", /*watched=*/false, /*used=*/0);
  tfring::Print("never used", /*watched=*/true, /*used=*/0);
  tfring::Print("four of them used once", /*watched=*/true, /*used=*/4);
}
