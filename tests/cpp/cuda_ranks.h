// Ranks as threads with a fake GPU each.
#ifndef TESTS_CPP_CUDA_RANKS_H_
#define TESTS_CPP_CUDA_RANKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/ranks.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/transport/cuda/cuda.h"

namespace tfring {

using FakeOptions = fake_cuda::Options;

// The way between the GPUs.
enum class Way { kIpc, kStaged, kCudaAware };

// Parts are smaller than segments, and segments no multiple of them.
inline constexpr int64_t kPartBytes = 512;
inline constexpr int64_t kSegmentBytes = 1000;

inline Options OptionsFor(Way way) {
  Options options;
  options.device_segment_bytes = kPartBytes;
  options.cuda_ipc = way == Way::kIpc;
  options.stall_shutdown_seconds = 20;
  return options;
}

// Calls body(device, transport, host) on each rank; nodes[r] is that of rank r.
// Nothing is left on the GPU.
template <typename Body>
void OnGpus(const std::vector<int>& nodes, const Options& options, Way way,
            const Body& body) {
  auto hosts = MakeInProcessTransports(nodes);
  const auto size = static_cast<int>(nodes.size());
  const int64_t left_before = FakeCudaCounts().left_in_context;
  OnThreads(size, [&](int rank) {
    if (way == Way::kCudaAware) {
      hosts[rank] =
          std::make_unique<CudaAwareTransport>(std::move(hosts[rank]));
    }
    const auto device = OpenGpu();
    auto transport = MakeCudaTransport(*device, *hosts[rank], options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->rank(), rank);
    EXPECT_EQ((*transport)->size(), size);
    body(*device, **transport, *hosts[rank]);
  });
  EXPECT_EQ(FakeCudaCounts().left_in_context, left_before);
}

// Calls body on each rank of one node.
template <typename Body>
void OnGpus(int size, const Options& options, Way way, const Body& body) {
  OnGpus(std::vector<int>(size), options, way, body);
}

}  // namespace tfring

#endif  // TESTS_CPP_CUDA_RANKS_H_
