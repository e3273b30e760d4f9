// Measures how long a lane takes for allreduces of float32, from one tensor to
// all the gradients of a model, between ranks that are threads and communicate
// through shared memory.
//
//   make -f tools/native.mk run/benchmarks/allreduce
//
// The least and the median of some rounds, and the CPU time that a rank took in
// the median round.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "tests/cpp/ranks.h"
#include "tfring_ops/algorithms/adaptive/adaptive_allreduce.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/collectives/collective.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/engine/tensor_entry.h"
#include "tfring_ops/kernels/kernels.h"

namespace tfring {
namespace {

constexpr size_t kRingBytes = 1536 << 10;  // Note [The size of a ring]

struct Case {
  const char* name;
  std::vector<int64_t> counts;  // elements of each tensor
};

// ResNet-50: convolutions and the pairs of vectors that normalise them.
std::vector<int64_t> ResNet50() {
  std::vector<int64_t> counts;
  const auto convolution = [&](int64_t size, int64_t in, int64_t out) {
    counts.insert(counts.end(), {size * size * in * out, out, out});
  };
  convolution(7, 3, 64);
  int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      convolution(1, in, width);
      convolution(3, width, width);
      convolution(1, width, 4 * width);
      if (block == 0) convolution(1, in, 4 * width);
      in = 4 * width;
    }
  }
  counts.insert(counts.end(), {in * 1000, 1000});
  return counts;
}

// BERT-base: embeddings, and twelve layers of attention.
std::vector<int64_t> BertBase() {
  constexpr int64_t kWidth = 768;
  std::vector<int64_t> counts = {30522 * kWidth, 512 * kWidth, 2 * kWidth,
                                 kWidth, kWidth};
  for (int layer = 0; layer < 12; ++layer) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      counts.insert(counts.end(), {kWidth * kWidth, kWidth});
    }
    counts.insert(counts.end(),
                  {kWidth, kWidth, 4 * kWidth * kWidth, 4 * kWidth,
                   4 * kWidth * kWidth, kWidth, kWidth, kWidth});
  }
  counts.insert(counts.end(), {kWidth * kWidth, kWidth});
  return counts;
}

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

void Run(const Case& c, bool in_place, int size, int rounds) {
  using Clock = std::chrono::steady_clock;
  const auto transports =
      MakeTransports(Medium::kSharedMemory, size, kRingBytes);
  std::vector<std::pair<double, double>> times(rounds);  // wall, CPU
  std::atomic<int> arrived{0};
  OnThreads(size, [&](int rank) {
    TensorEntry entry;
    std::vector<std::vector<float>> inputs, outputs;
    for (const int64_t count : c.counts) {
      entry.request.tensors.push_back({"", {count}});
      inputs.emplace_back(count, 0.0F);
      outputs.emplace_back(in_place ? 0 : count);
      entry.buffers.push_back(
          {inputs.back().data(),
           in_place ? inputs.back().data() : outputs.back().data()});
    }
    ExecutionContext context(Options(), *transports[rank], CpuKernels(),
                             CostSource::kTypical);
    TensorEntry* const entries[] = {&entry};
    const Members members(size);
    const Response response;
    for (int round = -2; round < rounds; ++round) {
      ++arrived;
      while (arrived < size * (round + 3)) std::this_thread::yield();
      const Clock::time_point start = Clock::now();
      const double cpu = ThreadSeconds();
      if (!CollectiveOf(entry.request.kind)
               .Run(context, {entries, response, size, members})
               .ok())
        std::abort();
      if (rank != 0 || round < 0) continue;
      times[round] = {
          std::chrono::duration<double>(Clock::now() - start).count(),
          ThreadSeconds() - cpu};
    }
  });
  std::sort(times.begin(), times.end());
  const auto& median = times[rounds / 2];
  std::printf("%10s %9s %9.3f %9.3f %9.3f\n", c.name,
              in_place ? "in place" : "", times[0].first * 1e3,
              median.first * 1e3, median.second * 1e3);
}

}  // namespace
}  // namespace tfring

// Ranks and rounds may be given.
int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  std::printf("%10s %9s %9s %9s %9s\n", "ms", "", "least", "median", "CPU");
  for (const tfring::Case& c :
       {tfring::Case{"1 KiB", {256}}, tfring::Case{"4 MiB", {1 << 20}},
        tfring::Case{"64 MiB", {16 << 20}},
        tfring::Case{"ResNet-50", tfring::ResNet50()},
        tfring::Case{"BERT-base", tfring::BertBase()}}) {
    for (const bool in_place : {true, false}) {
      tfring::Run(c, in_place, size, rounds);
    }
  }
}
