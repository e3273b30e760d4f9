// The negotiation without messages or threads, and with a clock of its own.
#ifndef TESTS_CPP_NEGOTIATION_FIXTURE_H_
#define TESTS_CPP_NEGOTIATION_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tfring_ops/engine/negotiation/coordinator.h"
#include "tfring_ops/engine/negotiation/messages.h"

namespace tfring {

using Ranks = std::vector<int32_t>;
using Names = std::vector<std::vector<std::string>>;

inline CollectiveRequest MakeRequest(
    const std::string& name, std::vector<int64_t> dims = {4},
    CollectiveKind kind = CollectiveKind::kAllreduce) {
  CollectiveRequest request;
  request.name = name;
  request.kind = kind;
  request.tensors = {{name, std::move(dims)}};
  if (kind == CollectiveKind::kJoin) request.tensors.clear();
  return request;
}

class NegotiationTest : public testing::Test {
 protected:
  static constexpr int kSize = 3;

  static Options MakeOptions(int64_t fusion_threshold_bytes = 100) {
    Options options;
    options.fusion_threshold_bytes = fusion_threshold_bytes;
    options.stall_check_seconds = 30;
    options.stall_shutdown_seconds = 600;
    return options;
  }

  // Gives the coordinator a request as the negotiator does: rank 0's as it is,
  // and another rank's out of a list that has been decoded.
  void Add(int rank, CollectiveRequest request) {
    if (rank == 0) return coordinator_.Add(rank, std::move(request), now_);
    RequestList list;
    list.requests.push_back(std::move(request));
    const auto decoded = decoder_.Decode({rank}, Encode(list)).value();
    for (KnownRequest* const known : decoded.requests) {
      coordinator_.Add({rank}, *known, now_);
    }
  }
  void Join(int rank) {
    Add(rank, MakeRequest("join", {}, CollectiveKind::kJoin));
  }
  void AddOnAllRanks(const CollectiveRequest& request) {
    for (int rank = 0; rank < kSize; ++rank) Add(rank, request);
  }
  void Pass(int seconds) {
    now_ += std::chrono::seconds(seconds);
    EXPECT_TRUE(coordinator_.CheckStalls(now_).ok());
  }

  // The names in the buckets of the next response list, which has nothing else.
  Names TakeBuckets() {
    const ResponseList response_list = coordinator_.TakeResponses();
    EXPECT_TRUE(response_list.errors.empty());
    EXPECT_TRUE(response_list.reports.empty());
    Names names;
    for (const auto& bucket : response_list.responses) {
      names.push_back(bucket.names);
    }
    return names;
  }

  Coordinator::Time now_;
  RequestListDecoder decoder_{kSize};
  Coordinator coordinator_{MakeOptions(), Members(kSize)};
};

}  // namespace tfring

#endif  // TESTS_CPP_NEGOTIATION_FIXTURE_H_
