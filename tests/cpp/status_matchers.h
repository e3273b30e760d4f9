// A matcher of an absl::Status, for EXPECT_THAT.
#ifndef TESTS_CPP_STATUS_MATCHERS_H_
#define TESTS_CPP_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"

namespace tfring {

// Matches a status whose message has this text.
MATCHER_P(HasMessage, text, "has a message with " + std::string(text)) {
  return testing::Value(std::string(arg.message()),
                        testing::HasSubstr(std::string(text)));
}

}  // namespace tfring

#endif  // TESTS_CPP_STATUS_MATCHERS_H_
