#include "tfring_ops/engine/messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tfring {
namespace {

ReadyList MakeReadyList() {
  CollectiveRequest request;
  request.name = "bucket 1";
  request.process_set_id = 4;
  request.kind = CollectiveKind::kBroadcast;
  request.device = 3;
  request.dtype = DataType::kFloat64;
  request.wire_dtype = DataType::kBfloat16;
  request.op = ReduceOp::kMax;
  request.root_rank = 3;
  request.prescale_factor = 0.1;
  request.postscale_factor = -2e300;
  request.tensors = {{"dense/kernel", {784, 128}}, {"scalar", {}}, {"", {0}}};
  request.splits = {300, 0, 484};
  ReadyList list;
  list.requests = {request, CollectiveRequest()};
  list.goodbye = true;
  return list;
}

Verdict MakeVerdict() {
  Verdict verdict;
  verdict.buckets.resize(2);
  verdict.buckets[0].names = {"a", "b"};
  verdict.buckets[0].splits = {{1, 2}, {0, 9}};
  verdict.buckets[0].last_joined = 7;
  verdict.buckets[1].names = {"c"};
  verdict.buckets[1].first_dims = {{1, 0, 5}, {2, 2, 2}};
  verdict.buckets[1].requests = MakeReadyList().requests;
  verdict.buckets[1].contributors = 2;
  verdict.failures = {
      {{0, 2}, "d", absl::FailedPreconditionError("shapes differ")}};
  verdict.reports = {{{1}, "rank 0 is late"}};
  verdict.plan = MakeReadyList().requests;
  verdict.farewell = absl::UnavailableError("the end");
  return verdict;
}

TEST(MessagesTest, AReadyListComesBackAsItWas) {
  const ReadyList list = MakeReadyList();
  const ReadyList copy = DecodeReadyList(Encode(list)).value();
  EXPECT_TRUE(copy.goodbye);
  ASSERT_EQ(copy.requests.size(), 2u);
  const CollectiveRequest& sent = list.requests[0];
  const CollectiveRequest& received = copy.requests[0];
  EXPECT_EQ(received.name, sent.name);
  EXPECT_EQ(received.process_set_id, sent.process_set_id);
  EXPECT_EQ(received.kind, sent.kind);
  EXPECT_EQ(received.device, sent.device);
  EXPECT_EQ(received.dtype, sent.dtype);
  EXPECT_EQ(received.wire_dtype, sent.wire_dtype);
  EXPECT_EQ(received.op, sent.op);
  EXPECT_EQ(received.root_rank, sent.root_rank);
  EXPECT_EQ(received.prescale_factor, sent.prescale_factor);
  EXPECT_EQ(received.postscale_factor, sent.postscale_factor);
  EXPECT_EQ(received.splits, sent.splits);
  ASSERT_EQ(received.tensors.size(), sent.tensors.size());
  for (size_t i = 0; i < sent.tensors.size(); ++i) {
    EXPECT_EQ(received.tensors[i].name, sent.tensors[i].name);
    EXPECT_EQ(received.tensors[i].dims, sent.tensors[i].dims);
  }
}

TEST(MessagesTest, ARequestAloneComesBackAsItWas) {
  const CollectiveRequest request = MakeReadyList().requests[0];
  const std::string bytes = Encode(request);
  EXPECT_EQ(Encode(DecodeRequest(bytes).value()), bytes);
  EXPECT_EQ(DecodeRequest(bytes.substr(1)).status().code(),
            absl::StatusCode::kInternal);
}

TEST(MessagesTest, AnAnnouncementIsNoReadyList) {
  const std::string bytes = Encode(Announcement{int64_t{1} << 40, true});
  EXPECT_FALSE(IsReadyList(bytes));
  EXPECT_FALSE(DecodeReadyList(bytes).ok());
  const Announcement copy = DecodeAnnouncement(bytes).value();
  EXPECT_EQ(copy.count, int64_t{1} << 40);
  EXPECT_TRUE(copy.leaves);
  const std::string list = Encode(ReadyList());
  EXPECT_TRUE(IsReadyList(list));
  EXPECT_FALSE(DecodeAnnouncement(list).ok());
}

TEST(MessagesTest, AVerdictComesBackAsItWas) {
  const Verdict verdict = MakeVerdict();
  const Verdict copy = DecodeVerdict(Encode(verdict)).value();
  ASSERT_EQ(copy.buckets.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(copy.buckets[i].names, verdict.buckets[i].names);
    EXPECT_EQ(copy.buckets[i].first_dims, verdict.buckets[i].first_dims);
    EXPECT_EQ(copy.buckets[i].splits, verdict.buckets[i].splits);
    EXPECT_EQ(copy.buckets[i].requests.size(),
              verdict.buckets[i].requests.size());
    EXPECT_EQ(copy.buckets[i].contributors, verdict.buckets[i].contributors);
    EXPECT_EQ(copy.buckets[i].last_joined, verdict.buckets[i].last_joined);
  }
  ASSERT_EQ(copy.failures.size(), 1u);
  EXPECT_EQ(copy.failures[0].ranks, verdict.failures[0].ranks);
  EXPECT_EQ(copy.failures[0].name, "d");
  EXPECT_EQ(copy.failures[0].status, verdict.failures[0].status);
  ASSERT_EQ(copy.reports.size(), 1u);
  EXPECT_EQ(copy.reports[0].ranks, verdict.reports[0].ranks);
  EXPECT_EQ(copy.reports[0].text, "rank 0 is late");
  ASSERT_EQ(copy.plan.size(), verdict.plan.size());
  EXPECT_EQ(Encode(copy.plan[0]), Encode(verdict.plan[0]));
  EXPECT_EQ(copy.farewell, verdict.farewell);
}

TEST(MessagesTest, EmptyMessagesComeBackEmpty) {
  const ReadyList list = DecodeReadyList(Encode(ReadyList())).value();
  EXPECT_TRUE(list.requests.empty());
  EXPECT_FALSE(list.goodbye);
  EXPECT_TRUE(DecodeVerdict(Encode(Verdict())).value().empty());
  EXPECT_FALSE(MakeVerdict().empty());
}

TEST(MessagesTest, ACutOrPaddedMessageIsAnError) {
  const std::string list = Encode(MakeReadyList());
  const std::string verdict = Encode(MakeVerdict());
  for (size_t size = 0; size < list.size(); ++size) {
    EXPECT_EQ(DecodeReadyList(list.substr(0, size)).status().code(),
              absl::StatusCode::kInternal);
  }
  for (size_t size = 0; size < verdict.size(); ++size) {
    EXPECT_EQ(DecodeVerdict(verdict.substr(0, size)).status().code(),
              absl::StatusCode::kInternal);
  }
  EXPECT_FALSE(DecodeReadyList(list + '\0').ok());
  EXPECT_FALSE(DecodeVerdict(verdict + '\0').ok());
  // A list that claims more items than memory has.
  EXPECT_FALSE(DecodeReadyList(list[0] + std::string(64, '\xff')).ok());
}

}  // namespace
}  // namespace tfring
