// Rules of CUDA that the fake driver enforces.  A library that breaks one of
// these rules fails in its own tests.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "tests/cpp/fake_gpu.h"
#include "tfring_ops/kernels/cuda_driver.h"

namespace tfring {
namespace {

constexpr int kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400,
              kNotReady = 600, kIllegalAddress = 700;
constexpr size_t kBytes = 4096;

// Makes GPU 1 current on the calling thread.  No other test depends on its
// context, so this test may end it.
class FakeDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver_.cuDevicePrimaryCtxRetain.Result(&context_, 1), 0);
    ASSERT_EQ(driver_.cuCtxPushCurrent.Result(context_), 0);
    ASSERT_EQ(CreateStream(driver_, &stream_), absl::OkStatus());
    ASSERT_EQ(driver_.cuMemAlloc.Result(&memory_, kBytes), 0);
    ASSERT_EQ(driver_.cuMemAlloc.Result(&other_, kBytes), 0);
  }
  void TearDown() override {
    CUcontext popped = nullptr;
    driver_.cuCtxPopCurrent.Result(&popped);
    driver_.cuDevicePrimaryCtxRelease.Result(1);
  }

  int Copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) const {
    return driver_.cuMemcpyDtoDAsync.Result(to, from, bytes, stream_);
  }
  // The kernel's own result, which is known when it has run.
  int Sum(CUdeviceptr to, CUdeviceptr from, int64_t count) const {
    LaunchSum(driver_, to, from, count, stream_);
    return driver_.cuStreamSynchronize.Result(stream_);
  }

  const WithFakeCuda devices_{&fake_cuda::Options::devices, 2};
  const CudaDriver& driver_ = **CudaDriver::Get();
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr memory_ = 0, other_ = 0;
};

TEST_F(FakeDriverTest, ACopyOnTheDeviceTakesNoMemoryOfTheHost) {
  std::vector<std::byte> host(kBytes);
  const CUdeviceptr address = DeviceAddress(host.data());
  EXPECT_EQ(Copy(memory_, address, kBytes), kInvalidValue);
  EXPECT_EQ(Copy(address, memory_, kBytes), kInvalidValue);
  void* pinned = nullptr;
  ASSERT_EQ(driver_.cuMemHostAlloc.Result(&pinned, kBytes, 0), 0);
  EXPECT_EQ(Copy(memory_, DeviceAddress(pinned), kBytes), 0);
  EXPECT_EQ(Copy(memory_, DeviceAddress(pinned) + 1, kBytes), kInvalidValue);
  EXPECT_EQ(driver_.cuMemFreeHost.Result(pinned), 0);
  EXPECT_EQ(Copy(memory_, DeviceAddress(pinned), kBytes), kInvalidValue);
}

TEST_F(FakeDriverTest, NorDoesACopyFromTheHostTakeTheDevices) {
  EXPECT_EQ(driver_.cuMemcpyHtoDAsync.Result(memory_, DeviceMemory(other_), 1,
                                             stream_),
            kInvalidValue);
  EXPECT_EQ(driver_.cuMemcpyDtoHAsync.Result(DeviceMemory(other_), memory_, 1,
                                             stream_),
            kInvalidValue);
}

TEST_F(FakeDriverTest, ARangeEndsWithItsMemory) {
  EXPECT_EQ(Copy(memory_ + 1, other_, kBytes), kInvalidValue);
  EXPECT_EQ(Copy(memory_, other_ + 1, kBytes), kInvalidValue);
  EXPECT_EQ(Copy(memory_ + 1, other_ + 1, kBytes - 1), 0);
}

TEST_F(FakeDriverTest, AKernelBeyondItsMemoryEndsTheContext) {
  EXPECT_EQ(Sum(memory_, other_, kBytes / 4), 0);
  EXPECT_EQ(Sum(memory_, other_, kBytes / 4 + 1), kIllegalAddress);
  CUdeviceptr more = 0;
  EXPECT_EQ(driver_.cuMemAlloc.Result(&more, 1), kIllegalAddress);
  EXPECT_EQ(Copy(memory_, other_, 1), kIllegalAddress);
  EXPECT_EQ(driver_.cuMemFree.Result(memory_), kIllegalAddress);
}

TEST_F(FakeDriverTest, AndSoDoesOneOnMemoryOfTheHost) {
  std::vector<float> host(8);
  EXPECT_EQ(Sum(memory_, DeviceAddress(host.data()), 8), kIllegalAddress);
}

TEST_F(FakeDriverTest, WhatIsOfAnotherContextIsNoHandle) {
  CUcontext other = nullptr;
  ASSERT_EQ(driver_.cuDevicePrimaryCtxRetain.Result(&other, 0), 0);
  CUevent event = nullptr;
  ASSERT_EQ(driver_.cuEventCreate.Result(&event, kCudaEventDisableTiming), 0);
  {
    const CudaScope scope(driver_, other);
    EXPECT_EQ(Copy(memory_, other_, 1), kInvalidHandle);
    EXPECT_EQ(driver_.cuMemFree.Result(memory_), kInvalidContext);
    CUstream stream = nullptr;
    ASSERT_EQ(CreateStream(driver_, &stream), absl::OkStatus());
    EXPECT_EQ(driver_.cuEventRecord.Result(event, stream), kInvalidHandle);
    // To wait for another GPU's event is allowed.
    EXPECT_EQ(driver_.cuStreamWaitEvent.Result(stream, event, 0), 0);
  }
  EXPECT_EQ(driver_.cuEventRecord.Result(event, stream_), 0);
  EXPECT_EQ(driver_.cuEventDestroy.Result(event), 0);
  EXPECT_EQ(driver_.cuEventRecord.Result(event, stream_), kInvalidHandle);
  EXPECT_EQ(driver_.cuStreamDestroy.Result(stream_), 0);
  EXPECT_EQ(Copy(memory_, other_, 1), kInvalidHandle);
  EXPECT_EQ(driver_.cuDevicePrimaryCtxRelease.Result(0), 0);
}

TEST_F(FakeDriverTest, ACallTakesAContext) {
  std::thread([&] {
    EXPECT_EQ(Copy(memory_, other_, 1), kInvalidContext);
    EXPECT_EQ(driver_.cuMemFree.Result(memory_), kInvalidContext);
    EXPECT_EQ(driver_.cuStreamSynchronize.Result(stream_), kInvalidContext);
  }).join();
}

TEST_F(FakeDriverTest, TheLastReleaseFreesAllThatIsLeft) {
  const int64_t before = FakeCudaCounts().left_in_context;
  CUcontext again = nullptr;
  ASSERT_EQ(driver_.cuDevicePrimaryCtxRetain.Result(&again, 1), 0);
  EXPECT_EQ(again, context_);
  EXPECT_EQ(driver_.cuDevicePrimaryCtxRelease.Result(1), 0);
  EXPECT_EQ(Copy(memory_, other_, 1), 0);
  EXPECT_EQ(driver_.cuDevicePrimaryCtxRelease.Result(1), 0);
  EXPECT_EQ(FakeCudaCounts().left_in_context, before + 2);
  EXPECT_NE(Copy(memory_, other_, 1), 0);
  EXPECT_EQ(driver_.cuCtxPushCurrent.Result(context_), kInvalidContext);
  ASSERT_EQ(driver_.cuDevicePrimaryCtxRetain.Result(&again, 1), 0);
  EXPECT_NE(again, context_);
}

TEST_F(FakeDriverTest, StreamsMayShareAQueue) {
  uint32_t number = 0;
  CUdeviceptr address = 0;
  ASSERT_EQ(driver_.cuMemHostRegister.Result(&number, sizeof(number), 0), 0);
  ASSERT_EQ(driver_.cuMemHostGetDevicePointer.Result(&address, &number, 0), 0);
  for (const int queues : {0, 1, 2, 3}) {
    const WithFakeCuda shared(&fake_cuda::Options::queues, queues);
    CUstream waits = nullptr, other = nullptr, third = nullptr;
    for (CUstream* const made : {&waits, &other, &third}) {
      ASSERT_EQ(CreateStream(driver_, made), absl::OkStatus());
    }
    CUevent event = nullptr;
    ASSERT_EQ(driver_.cuEventCreate.Result(&event, kCudaEventDisableTiming), 0);
    CudaStreamOperation wait{kCudaWaitValue32, address,
                             static_cast<uint32_t>(queues + 1),
                             kCudaWaitValueGeq};
    ASSERT_EQ(driver_.cuStreamBatchMemOp.Result(waits, 1, &wait, 0), 0);
    ASSERT_EQ(driver_.cuEventRecord.Result(event, third), 0);
    AwaitQuietGpus();
    // With one queue, all streams share it.  With two, the first and third
    // streams share one.
    const bool is_behind = queues == 1 || queues == 2;
    EXPECT_EQ(driver_.cuEventQuery.Result(event), is_behind ? kNotReady : 0);
    // A destroyed stream may have left work in a queue that other streams
    // share.
    EXPECT_EQ(driver_.cuStreamDestroy.Result(waits), 0);
    if (queues == 1) {
      reinterpret_cast<std::atomic<uint32_t>&>(number) = queues + 1;
    } else {
      CudaStreamOperation write{kCudaWriteValue32, address,
                                static_cast<uint32_t>(queues + 1), 0};
      EXPECT_EQ(driver_.cuStreamBatchMemOp.Result(other, 1, &write, 0), 0);
    }
    EXPECT_EQ(driver_.cuStreamSynchronize.Result(third), 0);
    EXPECT_EQ(driver_.cuEventQuery.Result(event), 0);
    EXPECT_EQ(driver_.cuStreamDestroy.Result(other), 0);
    EXPECT_EQ(driver_.cuStreamDestroy.Result(third), 0);
    EXPECT_EQ(driver_.cuEventDestroy.Result(event), 0);
  }
  EXPECT_EQ(driver_.cuMemHostUnregister.Result(&number), 0);
}

TEST_F(FakeDriverTest, ADelayMayBeOfAnyLength) {
  // One of 30 random delays is almost certainly longer than half of the limit.
  const WithFakeCuda delay(&fake_cuda::Options::delay_us, 400'000);
  for (int i = 0; i < 30 && FakeCudaCounts().longest_delay_us < 200'000; ++i) {
    EXPECT_EQ(Copy(memory_, other_, 1), 0);
    EXPECT_EQ(driver_.cuStreamSynchronize.Result(stream_), 0);
  }
  EXPECT_GE(FakeCudaCounts().longest_delay_us, 200'000);
  EXPECT_LE(FakeCudaCounts().longest_delay_us, 400'000);
}

}  // namespace
}  // namespace tfring
