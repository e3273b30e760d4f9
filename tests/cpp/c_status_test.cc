// No exception crosses the C API.
#include "tfring_ops/capi/c_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <string>
#include <system_error>

namespace tfring {
namespace {

[[noreturn]] void NoMemory() { throw std::bad_alloc(); }
[[noreturn]] void NoThread() {
  throw std::system_error(
      std::make_error_code(std::errc::resource_unavailable_try_again));
}

TEST(CStatusTest, AnExceptionBecomesAnError) {
  EXPECT_THAT(RunAsCStatus([]() -> absl::Status { NoMemory(); }),
              testing::HasSubstr("out of memory or threads: "));
  EXPECT_THAT(RunAsCStatus([]() -> absl::Status { NoThread(); }),
              testing::HasSubstr("Resource temporarily unavailable"));
  EXPECT_STREQ(RunAsCStatus([]() -> absl::Status { throw 1; }),
               "out of memory");
}

TEST(CStatusTest, AStatusIsItsMessage) {
  EXPECT_EQ(RunAsCStatus([] { return absl::OkStatus(); }), nullptr);
  EXPECT_STREQ(RunAsCStatus([] { return absl::UnavailableError("gone"); }),
               "gone");
}

TEST(CStatusTest, OtherResultsHaveAValueForIt) {
  EXPECT_EQ(RunOr(-1, []() -> int { NoMemory(); }), -1);
  EXPECT_EQ(RunOr(-1, [] { return 5; }), 5);
  EXPECT_STREQ(RunAsText([]() -> std::string { NoMemory(); }), "");
  EXPECT_STREQ(RunAsText([] { return std::string("text"); }), "text");
  RunAnyway([] { NoThread(); });
}

}  // namespace
}  // namespace tfring
