#include "tfring_ops/engine/negotiation/messages.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tfring {
namespace {

RequestList MakeRequestList() {
  CollectiveRequest request;
  request.name = "bucket 1";
  request.is_nameless = true;
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
  request.chain = "gradients";
  request.execution = 7;
  RequestList list;
  list.requests = {request, CollectiveRequest()};
  list.shutdown = true;
  return list;
}

ResponseList MakeResponseList() {
  ResponseList response_list;
  response_list.responses.resize(2);
  response_list.responses[0].names = {"a", "b"};
  response_list.responses[0].sizes = {{1, 2}, {0, 9}};
  response_list.responses[0].last_joined = 7;
  response_list.responses[1].names = {"c"};
  response_list.responses[1].sizes = {{1, 0, 5}, {2, 2, 2}};
  response_list.responses[1].requests = MakeRequestList().requests;
  response_list.responses[1].contributors = 2;
  response_list.errors = {
      {{0, 2}, "d", absl::FailedPreconditionError("shapes differ")}};
  response_list.reports = {{{1}, "rank 0 is late"}};
  response_list.schedule = MakeRequestList().requests;
  response_list.shutdown = absl::UnavailableError("the end");
  return response_list;
}

TEST(MessagesTest, ARequestListComesBackAsItWas) {
  const RequestList list = MakeRequestList();
  const RequestList copy = DecodeRequestList(Encode(list)).value();
  EXPECT_TRUE(copy.shutdown);
  ASSERT_EQ(copy.requests.size(), 2u);
  const CollectiveRequest& sent = list.requests[0];
  const CollectiveRequest& received = copy.requests[0];
  EXPECT_EQ(received.name, sent.name);
  EXPECT_EQ(received.is_nameless, sent.is_nameless);
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
  EXPECT_EQ(received.chain, sent.chain);
  EXPECT_EQ(received.execution, sent.execution);
  ASSERT_EQ(received.tensors.size(), sent.tensors.size());
  for (size_t i = 0; i < sent.tensors.size(); ++i) {
    EXPECT_EQ(received.tensors[i].name, sent.tensors[i].name);
    EXPECT_EQ(received.tensors[i].dims, sent.tensors[i].dims);
  }
}

TEST(MessagesTest, ARequestAloneComesBackAsItWas) {
  const CollectiveRequest request = MakeRequestList().requests[0];
  const std::string bytes = Encode(request);
  EXPECT_EQ(Encode(DecodeRequest(bytes).value()), bytes);
  EXPECT_EQ(DecodeRequest(bytes.substr(1)).status().code(),
            absl::StatusCode::kInternal);
}

TEST(MessagesTest, ARequestOfAnUnknownKindIsRefused) {
  CollectiveRequest request = MakeRequestList().requests[0];
  request.kind = static_cast<CollectiveKind>(kCollectiveKindCount - 1);
  EXPECT_TRUE(DecodeRequest(Encode(request)).ok());
  request.kind = static_cast<CollectiveKind>(kCollectiveKindCount);
  EXPECT_EQ(DecodeRequest(Encode(request)).status().code(),
            absl::StatusCode::kInternal);
}

TEST(MessagesTest, AProgressUpdateIsNoRequestList) {
  const std::string bytes = Encode(ProgressUpdate{
      {int64_t{1} << 40, true, false}, {7, 9}, {{5, 2, {3, 0}}}});
  EXPECT_FALSE(IsRequestList(bytes));
  EXPECT_FALSE(DecodeRequestList(bytes).ok());
  const ProgressUpdate copy = DecodeProgressUpdate(bytes).value();
  EXPECT_EQ(copy.progress.count, int64_t{1} << 40);
  EXPECT_TRUE(copy.progress.some_left);
  EXPECT_FALSE(copy.progress.all_left);
  EXPECT_EQ(copy.borders, (std::vector<int64_t>{7, 9}));
  ASSERT_EQ(copy.sizes.size(), 1u);
  EXPECT_EQ(copy.sizes[0].item, 5);
  EXPECT_EQ(copy.sizes[0].rank, 2);
  EXPECT_EQ(copy.sizes[0].sizes, (std::vector<int64_t>{3, 0}));
  EXPECT_FALSE(DecodeProgressUpdate(bytes.substr(0, bytes.size() - 1)).ok());
  const std::string list = Encode(RequestList());
  EXPECT_TRUE(IsRequestList(list));
  EXPECT_FALSE(DecodeProgressUpdate(list).ok());
}

TEST(MessagesTest, AResponseListComesBackAsItWas) {
  const ResponseList response_list = MakeResponseList();
  const ResponseList copy = DecodeResponseList(Encode(response_list)).value();
  ASSERT_EQ(copy.responses.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(copy.responses[i].names, response_list.responses[i].names);
    EXPECT_EQ(copy.responses[i].sizes, response_list.responses[i].sizes);
    EXPECT_EQ(copy.responses[i].requests.size(),
              response_list.responses[i].requests.size());
    EXPECT_EQ(copy.responses[i].contributors,
              response_list.responses[i].contributors);
    EXPECT_EQ(copy.responses[i].last_joined,
              response_list.responses[i].last_joined);
  }
  ASSERT_EQ(copy.errors.size(), 1u);
  EXPECT_EQ(copy.errors[0].ranks, response_list.errors[0].ranks);
  EXPECT_EQ(copy.errors[0].name, "d");
  EXPECT_EQ(copy.errors[0].status, response_list.errors[0].status);
  ASSERT_EQ(copy.reports.size(), 1u);
  EXPECT_EQ(copy.reports[0].ranks, response_list.reports[0].ranks);
  EXPECT_EQ(copy.reports[0].text, "rank 0 is late");
  ASSERT_EQ(copy.schedule.size(), response_list.schedule.size());
  EXPECT_EQ(Encode(copy.schedule[0]), Encode(response_list.schedule[0]));
  EXPECT_EQ(copy.shutdown, response_list.shutdown);
}

TEST(MessagesTest, EmptyMessagesComeBackEmpty) {
  const RequestList list = DecodeRequestList(Encode(RequestList())).value();
  EXPECT_TRUE(list.requests.empty());
  EXPECT_FALSE(list.shutdown);
  EXPECT_TRUE(DecodeResponseList(Encode(ResponseList())).value().empty());
  EXPECT_FALSE(MakeResponseList().empty());
}

TEST(MessagesTest, ACutOrPaddedMessageIsAnError) {
  const std::string list = Encode(MakeRequestList());
  const std::string response_list = Encode(MakeResponseList());
  for (size_t size = 0; size < list.size(); ++size) {
    EXPECT_EQ(DecodeRequestList(list.substr(0, size)).status().code(),
              absl::StatusCode::kInternal);
  }
  for (size_t size = 0; size < response_list.size(); ++size) {
    EXPECT_EQ(DecodeResponseList(response_list.substr(0, size)).status().code(),
              absl::StatusCode::kInternal);
  }
  EXPECT_FALSE(DecodeRequestList(list + '\0').ok());
  EXPECT_FALSE(DecodeResponseList(response_list + '\0').ok());
  // A list that claims more items than memory has.
  EXPECT_FALSE(DecodeRequestList(list[0] + std::string(64, '\xff')).ok());
}

}  // namespace
}  // namespace tfring
