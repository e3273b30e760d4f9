#include "tfring_ops/base/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace tfring {
namespace {

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }

  static constexpr const char* kVariables[] = {
      "TFRING_FUSION_THRESHOLD",
      "TFRING_SEGMENT_BYTES",
      "TFRING_NETWORK_SEGMENT_BYTES",
      "TFRING_BUCKETS_IN_FLIGHT",
      "TFRING_DEVICE_SEGMENT_BYTES",
      "TFRING_CUDA_IPC",
      "TFRING_CUDA_AWARE_MPI",
      "TFRING_GPU_BACKEND",
      "TFRING_SHARED_MEMORY",
      "TFRING_STALL_CHECK_TIME_SECONDS",
      "TFRING_STALL_SHUTDOWN_TIME_SECONDS",
      "TFRING_OVERLAP",
      "TFRING_DETERMINISTIC",
      "TFRING_ALLREDUCE",
      "TFRING_VERBOSE"};

 private:
  static void Clear() {
    for (const char* variable : kVariables) unsetenv(variable);
  }
};

TEST_F(OptionsTest, HasDefaults) {
  const Options options = Options::FromEnvironment().value();
  EXPECT_EQ(options.fusion_threshold_bytes, 64 << 20);
  EXPECT_EQ(options.segment_bytes, 128 << 10);
  EXPECT_EQ(options.network_segment_bytes, 512 << 10);
  EXPECT_EQ(options.buckets_in_flight, 2);
  EXPECT_EQ(options.device_segment_bytes, 4 << 20);
  EXPECT_TRUE(options.cuda_ipc);
  EXPECT_EQ(options.cuda_aware_mpi, Options::CudaAwareMpi::kAsk);
  EXPECT_EQ(options.gpu_backend, Options::GpuBackend::kAuto);
  EXPECT_TRUE(options.shared_memory);
  EXPECT_EQ(options.stall_check_seconds, 30);
  EXPECT_EQ(options.stall_shutdown_seconds, 600);
  EXPECT_TRUE(options.overlap);
  EXPECT_FALSE(options.deterministic);
  EXPECT_EQ(options.allreduce, AllreduceAlgorithm::kAuto);
  EXPECT_FALSE(options.verbose);
}

TEST_F(OptionsTest, ReadsEveryVariable) {
  setenv("TFRING_FUSION_THRESHOLD", "0", 1);
  setenv("TFRING_SEGMENT_BYTES", "8", 1);
  setenv("TFRING_NETWORK_SEGMENT_BYTES", "16", 1);
  setenv("TFRING_BUCKETS_IN_FLIGHT", "8", 1);
  setenv("TFRING_DEVICE_SEGMENT_BYTES", "64", 1);
  setenv("TFRING_CUDA_IPC", "0", 1);
  setenv("TFRING_CUDA_AWARE_MPI", "1", 1);
  setenv("TFRING_GPU_BACKEND", "nccl", 1);
  setenv("TFRING_SHARED_MEMORY", "0", 1);
  setenv("TFRING_STALL_CHECK_TIME_SECONDS", "1.5", 1);
  setenv("TFRING_STALL_SHUTDOWN_TIME_SECONDS", "0", 1);
  setenv("TFRING_OVERLAP", "0", 1);
  setenv("TFRING_DETERMINISTIC", "1", 1);
  setenv("TFRING_ALLREDUCE", "recursive_doubling", 1);
  setenv("TFRING_VERBOSE", "1", 1);
  const Options options = Options::FromEnvironment().value();
  EXPECT_EQ(options.fusion_threshold_bytes, 0);
  EXPECT_EQ(options.segment_bytes, 8);
  EXPECT_EQ(options.network_segment_bytes, 16);
  EXPECT_EQ(options.buckets_in_flight, 8);
  EXPECT_EQ(options.device_segment_bytes, 64);
  EXPECT_FALSE(options.cuda_ipc);
  EXPECT_EQ(options.cuda_aware_mpi, Options::CudaAwareMpi::kYes);
  EXPECT_EQ(options.gpu_backend, Options::GpuBackend::kNccl);
  EXPECT_FALSE(options.shared_memory);
  EXPECT_EQ(options.stall_check_seconds, 1.5);
  EXPECT_EQ(options.stall_shutdown_seconds, 0);
  EXPECT_FALSE(options.overlap);
  EXPECT_TRUE(options.deterministic);
  EXPECT_EQ(options.allreduce, AllreduceAlgorithm::kRecursiveDoubling);
  EXPECT_TRUE(options.verbose);
}

TEST_F(OptionsTest, AnEmptyVariableIsAsIfUnset) {
  for (const char* variable : kVariables) setenv(variable, "", 1);
  EXPECT_EQ(Options::FromEnvironment().value().segment_bytes, 128 << 10);
}

TEST_F(OptionsTest, NamesTheVariableThatIsWrong) {
  for (const char* variable : kVariables) {
    for (const char* value : {"x", "-1", "1e999", "nan", "3 MiB"}) {
      setenv(variable, value, 1);
      const absl::Status status = Options::FromEnvironment().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
      EXPECT_NE(status.message().find(std::string(variable) + "='" + value),
                absl::string_view::npos)
          << status;
    }
    unsetenv(variable);
  }
}

struct Bounds {
  const char* variable;
  const char* lowest;  // and highest, which are legal
  const char* highest;
  const char* below;
  const char* above;
};

TEST_F(OptionsTest, EveryNumberHasBounds) {
  for (const Bounds& bounds : {
           Bounds{"TFRING_FUSION_THRESHOLD", "0", "1099511627776", "-1",
                  "1099511627777"},
           // A segment holds at least one element of any type.
           Bounds{"TFRING_SEGMENT_BYTES", "8", "268435456", "7", "268435457"},
           Bounds{"TFRING_NETWORK_SEGMENT_BYTES", "8", "268435456", "7",
                  "4611686018427387904"},
           Bounds{"TFRING_DEVICE_SEGMENT_BYTES", "64", "268435456", "63",
                  "268435457"},
           Bounds{"TFRING_BUCKETS_IN_FLIGHT", "1", "8", "0", "9"},
           Bounds{"TFRING_STALL_CHECK_TIME_SECONDS", "0", "1000000000", "-0.1",
                  "1e10"},
           Bounds{"TFRING_STALL_SHUTDOWN_TIME_SECONDS", "0", "1000000000",
                  "-0.1", "inf"},
       }) {
    for (const char* legal : {bounds.lowest, bounds.highest}) {
      setenv(bounds.variable, legal, 1);
      EXPECT_TRUE(Options::FromEnvironment().ok()) << legal;
    }
    for (const char* wrong : {bounds.below, bounds.above}) {
      setenv(bounds.variable, wrong, 1);
      const std::string message(Options::FromEnvironment().status().message());
      for (const std::string& part :
           {std::string(bounds.variable), std::string(wrong),
            std::string(" from ") + bounds.lowest,
            std::string(" to ") + bounds.highest}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
      }
    }
    unsetenv(bounds.variable);
  }
}

}  // namespace
}  // namespace tfring
