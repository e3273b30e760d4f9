// ring_checks.h, with the tensors on a GPU.
#ifndef TESTS_CPP_CUDA_RING_CHECKS_H_
#define TESTS_CPP_CUDA_RING_CHECKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/cpp/elements.h"
#include "tests/cpp/fake_gpu.h"
#include "tests/cpp/ring_checks.h"
#include "tfring_ops/algorithms/pairwise/adasum.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

class GpuRank : public RingRank<CudaDevice, DeviceElements> {
 public:
  using RingRank::RingRank;

  absl::StatusOr<Elements> Allreduce(
      const AllreduceCase& c, const Elements& input, bool in_place,
      const std::function<void()>& begin = [] {}) {
    return Reduce(c, input, in_place, &RingAllreduce, begin);
  }

  // Checks that the GPU gives the same bits as the host.
  void CheckAdasum(Transport& host, int64_t count) {
    Elements input =
        MakeElements(DataType::kFloat32, count, [&](auto type, int64_t i) {
          return RandomElement<decltype(type)>(rank(), i);
        });
    const DeviceElements data(device_, input);
    const DeviceElements received(device_, Elements(input.size()));
    absl::Status status = RingAdasum(context_, data.data(), received.data(),
                                     count, DataType::kFloat32);
    ASSERT_TRUE(status.ok()) << status;
    Elements host_received(input.size());
    status = RingAdasum(HostRank(host, context_.segment_bytes).context(),
                        input.data(), host_received.data(), count,
                        DataType::kFloat32);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(data.Download() == input) << "rank " << rank();
  }

  void CheckAll(Transport& host, const std::vector<SolvedAllreduce>& cases) {
    RingRank::CheckAll(cases, /*many=*/10'003);
    CheckAdasum(host, 1001);
  }
};

}  // namespace tfring

#endif  // TESTS_CPP_CUDA_RING_CHECKS_H_
