// Ranks with the fake NCCL (tests/gpu/fake/nccl), and a fake GPU each.
#ifndef TESTS_CPP_NCCL_RANKS_H_
#define TESTS_CPP_NCCL_RANKS_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "tests/cpp/cuda_ranks.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/gpu/fake/nccl/fake_nccl.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/execution/execution_context.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/nccl/collectives.h"
#include "tfring_ops/transport/cuda/cuda.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

inline fake_nccl::Options* FakeNccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  void* const function =
      library == nullptr ? nullptr : dlsym(library, "FakeNcclOptions");
  return function == nullptr
             ? nullptr
             : reinterpret_cast<fake_nccl::Options* (*)()>(function)();
}

// Sets an option of the fake NCCL.
struct WithFakeNccl : WithOption {
  WithFakeNccl(std::atomic<int> fake_nccl::Options::* option, int value)
      : WithOption(FakeNccl()->*option, value) {}
};

inline Options NcclOptions(
    Options::GpuBackend backend = Options::GpuBackend::kNccl) {
  Options options = OptionsFor(Way::kStaged);
  options.gpu_backend = backend;
  options.device_segment_bytes = 64 << 10;
  return options;
}

// Calls body(context, device, collectives) on each rank, which has a GPU for
// itself.
template <typename Body>
void OnNccl(int size, const Body& body) {
  const WithFakeCuda devices(&fake_cuda::Options::devices, size);
  const Options options = NcclOptions();
  auto hosts = MakeInProcessTransports(size);
  OnThreads(size, [&](int rank) {
    const auto device = OpenGpu(rank);
    const auto transport = MakeCudaTransport(*device, *hosts[rank], options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    const auto collectives =
        MakeNcclCollectives(*device, *hosts[rank], options);
    ASSERT_TRUE(collectives.ok()) << collectives.status();
    ExecutionContext context(options, **transport, device->kernels(),
                             CostSource::kTypical, Memory::kDevice,
                             collectives->get());
    body(rank, context, *device, **collectives);
  });
}

}  // namespace tfring

#endif  // TESTS_CPP_NCCL_RANKS_H_
