// GPUs of tests/gpu/fake/cuda, and tensors on them.
#ifndef TESTS_CPP_FAKE_GPU_H_
#define TESTS_CPP_FAKE_GPU_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "tests/cpp/await.h"
#include "tests/cpp/elements.h"
#include "tests/gpu/fake/cuda/fake_cuda.h"
#include "tfring_ops/kernels/cuda.h"
#include "tfring_ops/kernels/cuda_driver.h"
#include "tfring_ops/kernels/cuda_kernels.h"
#include "tfring_ops/kernels/workspace.h"
#include "tfring_ops/transport/forwarding.h"
#include "tfring_ops/transport/transport.h"

namespace tfring {

// The fake driver's, or null where the driver is a real one.
inline void* FakeCudaFunction(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : dlsym(driver, name);
}
inline fake_cuda::Options* FakeCuda() {
  void* const function = FakeCudaFunction("FakeCudaOptions");
  return function == nullptr
             ? nullptr
             : reinterpret_cast<fake_cuda::Options* (*)()>(function)();
}

// REQUIRES: a fake driver.
inline fake_cuda::Counts& FakeCudaCounts() {
  return *reinterpret_cast<fake_cuda::Counts* (*)()>(
      FakeCudaFunction("FakeCudaCounts"))();
}

// Makes a GPU stop all work and fail.
inline void LoseGpu(int device) {
  reinterpret_cast<void (*)(int)>(FakeCudaFunction("FakeCudaLose"))(device);
}

// Returns when the GPUs do nothing more by themselves: each stream has done
// all, is held, or waits.
inline void AwaitQuietGpus() {
  EXPECT_TRUE(Await([] { return FakeCudaCounts().busy_queues == 0; }));
}

// Sets an option of a fake, and restores it at the end of its scope.
class WithOption {
 public:
  WithOption(std::atomic<int>& option, int value)
      : option_(option), before_(option_.exchange(value)) {}
  ~WithOption() { option_ = before_; }
  WithOption(const WithOption&) = delete;
  WithOption& operator=(const WithOption&) = delete;

 private:
  std::atomic<int>& option_;
  const int before_;
};

// Sets an option of the fake driver.
struct WithFakeCuda : WithOption {
  WithFakeCuda(std::atomic<int> fake_cuda::Options::* option, int value)
      : WithOption(FakeCuda()->*option, value) {}
};

// Launches the kernel that adds `count` floats at `from` to themselves.
inline void LaunchSum(const CudaDriver& driver, CUdeviceptr to,
                      CUdeviceptr from, int64_t count, CUstream stream) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(
      driver.cuModuleLoadDataEx(&module, tfring_cuda_ptx, 0, nullptr, nullptr),
      absl::OkStatus());
  EXPECT_EQ(driver.cuModuleGetFunction(&function, module, "tfring_sum_float32"),
            absl::OkStatus());
  void* parameters[] = {&to, &from, &from, &count};
  EXPECT_EQ(driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream,
                                  parameters, nullptr),
            absl::OkStatus());
}

inline std::unique_ptr<CudaDevice> OpenGpu(int ordinal = 0) {
  auto device = CudaDevice::ForOrdinal(ordinal);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// An event at the end of all that is enqueued on a stream.
inline std::shared_ptr<CudaEvent> RecordEnd(const CudaDevice& device,
                                            void* stream) {
  std::shared_ptr<CudaEvent> end = CudaEvent::Create(device).value();
  EXPECT_EQ(end->Record(stream), absl::OkStatus());
  return end;
}

// Returns true if the stream finishes all enqueued work.
inline bool StreamEnds(const CudaDevice& device, void* stream) {
  return Await([end = RecordEnd(device, stream)] { return *end->Done(); });
}

// Returns true if the stream waits for work that a test holds.
inline bool StreamIsHeld(const CudaDevice& device, void* stream) {
  const auto end = RecordEnd(device, stream);
  AwaitQuietGpus();
  return !*end->Done();
}

// A copy of `elements` on a GPU, from byte `offset` of its memory on.
class DeviceElements {
 public:
  DeviceElements(const CudaDevice& device, const Elements& elements,
                 int64_t offset = 0)
      : device_(device),
        memory_(device.kernels()),
        bytes_(static_cast<int64_t>(elements.size())) {
    data_ = memory_.AtLeast(offset + bytes_ + 1).value() + offset;
    EXPECT_EQ(device_.Upload(data_, elements.data(), bytes_), absl::OkStatus());
  }

  std::byte* data() const { return data_; }

  Elements Download() const {
    Elements elements(bytes_);
    EXPECT_EQ(device_.Download(elements.data(), data_, bytes_),
              absl::OkStatus());
    return elements;
  }

 private:
  const CudaDevice& device_;
  Workspace memory_;
  const int64_t bytes_;
  std::byte* data_;
};

// A host transport that takes the fake GPU's memory as well as the host's.
class CudaAwareTransport final : public ForwardingTransport {
 public:
  explicit CudaAwareTransport(std::unique_ptr<Transport> host)
      : ForwardingTransport(std::move(host)) {}

  OperationId StartSend(int peer, ConstBytes data) override {
    std::byte* const memory = const_cast<std::byte*>(data.data());
    return ForwardingTransport::StartSend(
        peer, ConstBytes(OnHost(memory, data.size()), data.size()));
  }
  OperationId StartRecv(int peer, Bytes data) override {
    return ForwardingTransport::StartRecv(
        peer, Bytes(OnHost(data.data(), data.size()), data.size()));
  }
  bool TakesDeviceMemory(int /*peer*/) const override { return true; }

 private:
  static std::byte* OnHost(std::byte* memory, size_t bytes) {
    static const auto translate = reinterpret_cast<void* (*)(void*, size_t)>(
        FakeCudaFunction("FakeCudaOnHost"));
    void* const found = translate(memory, bytes);
    return found == nullptr ? memory : static_cast<std::byte*>(found);
  }
};

}  // namespace tfring

#endif  // TESTS_CPP_FAKE_GPU_H_
