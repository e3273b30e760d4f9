#include "tfring_ops/base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "tests/cpp/status_matchers.h"

namespace tfring {
namespace {

struct Variable {
  const char* name;
  const char* text;
  std::function<double(const Options&)> value;
  double without;  // the variable
  double with;     // that text in it
};

// The value of a member, as a number.
template <typename T>
std::function<double(const Options&)> Of(T Options::* member) {
  return [member](const Options& options) {
    return static_cast<double>(options.*member);
  };
}
template <typename T>
constexpr double As(T value) {
  return static_cast<double>(value);
}

const Variable kVariables[] = {
    {"TFRING_FUSION_THRESHOLD", "0", Of(&Options::fusion_threshold_bytes),
     64 << 20, 0},
    {"TFRING_CUDA_IPC", "0", Of(&Options::cuda_ipc), true, false},
    {"TFRING_GPU_BACKEND", "nccl", Of(&Options::gpu_backend),
     As(Options::GpuBackend::kAuto), As(Options::GpuBackend::kNccl)},
    {"TFRING_SHARED_MEMORY", "0", Of(&Options::shared_memory), true, false},
    {"TFRING_STALL_CHECK_TIME_SECONDS", "1.5",
     Of(&Options::stall_check_seconds), 30, 1.5},
    {"TFRING_STALL_SHUTDOWN_TIME_SECONDS", "0",
     Of(&Options::stall_shutdown_seconds), 600, 0},
    {"TFRING_DETERMINISTIC", "1", Of(&Options::deterministic), false, true},
    {"TFRING_ALLREDUCE", "recursive_doubling", Of(&Options::allreduce),
     As(AllreduceAlgorithm::kAuto), As(AllreduceAlgorithm::kRecursiveDoubling)},
    {"TFRING_VERBOSE", "1", Of(&Options::verbose), false, true}};

class OptionsTest : public testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }

 private:
  static void Clear() {
    for (const Variable& variable : kVariables) unsetenv(variable.name);
  }
};

TEST_F(OptionsTest, ReadsEveryVariableOrHasADefault) {
  const Options without = Options::FromEnvironment().value();
  for (const Variable& each : kVariables) setenv(each.name, each.text, 1);
  const Options with = Options::FromEnvironment().value();
  for (const Variable& each : kVariables) {
    EXPECT_EQ(each.value(without), each.without) << each.name;
    EXPECT_EQ(each.value(with), each.with) << each.name;
  }
}

TEST_F(OptionsTest, AnEmptyVariableIsAsIfUnset) {
  for (const Variable& each : kVariables) setenv(each.name, "", 1);
  EXPECT_EQ(Options::FromEnvironment().value().fusion_threshold_bytes,
            64 << 20);
}

TEST_F(OptionsTest, NamesTheVariableThatIsWrong) {
  for (const Variable& each : kVariables) {
    const char* const variable = each.name;
    for (const char* wrong : {"x", "-1", "1e999", "nan", "3 MiB"}) {
      setenv(variable, wrong, 1);
      const absl::Status status = Options::FromEnvironment().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
      EXPECT_THAT(status, HasMessage(std::string(variable) + "='" + wrong));
    }
    unsetenv(variable);
  }
}

struct Bounds {
  const char* variable;
  const char* lowest;  // lowest and highest are legal
  const char* highest;
  const char* below;
  const char* above;
};

TEST_F(OptionsTest, EveryNumberHasBounds) {
  for (const Bounds& bounds : {
           Bounds{"TFRING_FUSION_THRESHOLD", "0", "1099511627776", "-1",
                  "1099511627777"},
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
      EXPECT_THAT(
          Options::FromEnvironment().status(),
          testing::AllOf(HasMessage(bounds.variable), HasMessage(wrong),
                         HasMessage(std::string(" from ") + bounds.lowest),
                         HasMessage(std::string(" to ") + bounds.highest)));
    }
    unsetenv(bounds.variable);
  }
}

}  // namespace
}  // namespace tfring
