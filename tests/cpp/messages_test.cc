#include "tfring_ops/engine/negotiation/messages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
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

absl::StatusOr<RequestListDecoder::List> DecodeRequestList(
    const std::string& bytes) {
  return RequestListDecoder(1).Decode({0}, bytes);
}

TEST(MessagesTest, ARequestListComesBackAsItWas) {
  RequestList list = MakeRequestList();
  list.schedules = 5;
  RequestListDecoder decoder(1);
  const auto copy = decoder.Decode({0}, Encode(list)).value();
  EXPECT_TRUE(copy.shutdown);
  EXPECT_EQ(copy.schedules, 5);
  ASSERT_EQ(copy.requests.size(), 2u);
  const CollectiveRequest& sent = list.requests[0];
  const CollectiveRequest& received = copy.requests[0]->request;
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

TEST(MessagesTest, IntegersOfEverySizeComeBackAsTheyWere) {
  CollectiveRequest request;
  request.splits = {std::numeric_limits<int64_t>::min(),
                    std::numeric_limits<int64_t>::max()};
  for (int64_t power = 1; power > 0 && power <= int64_t{1} << 61; power *= 2) {
    for (const int64_t near : {power - 1, power, -power, -power - 1}) {
      request.splits.push_back(near);
    }
  }
  EXPECT_EQ(DecodeRequest(Encode(request)).value().splits, request.splits);
}

// The requests of several ranks, whose names are letters.
class RequestListDecoderTest : public testing::Test {
 protected:
  static constexpr int kSize = 4;

  std::vector<KnownRequest*> Decode(int rank, const std::string& names,
                                    int64_t dim = 4) {
    RequestList list;
    for (const char name : names) {
      CollectiveRequest& request = list.requests.emplace_back();
      request.name = name;
      request.tensors = {{request.name, {name == 'b' ? dim : 4}}};
    }
    const auto decoded = decoder_.Decode({rank}, Encode(list)).value();
    std::string copy;
    for (const KnownRequest* const known : decoded.requests) {
      copy += known->request.name;
    }
    EXPECT_EQ(copy, names);
    return decoded.requests;
  }

  RequestListDecoder decoder_{kSize};
};

TEST_F(RequestListDecoderTest, RanksThatSendTheSameShareObjects) {
  const auto first = Decode(0, "abc");
  EXPECT_EQ(Decode(1, "abc"), first);
  // Lists that are cut in another place share them too, and so do the lists of
  // the next step.
  EXPECT_EQ(Decode(2, "a")[0], first[0]);
  EXPECT_EQ(Decode(2, "bc")[1], first[2]);
  EXPECT_EQ(Decode(1, "abc"), first);
}

TEST_F(RequestListDecoderTest, AlsoInAnotherOrderOrWithOneMore) {
  const auto first = Decode(0, "abc");
  const auto other = Decode(1, "cab");
  EXPECT_EQ(other[0], first[2]);
  EXPECT_EQ(other[1], first[0]);
  const auto more = Decode(2, "axbc");
  EXPECT_EQ(more[0], first[0]);
  EXPECT_EQ(more[3], first[2]);
  EXPECT_EQ(Decode(3, "abc"), first);
}

TEST_F(RequestListDecoderTest, ARequestThatDiffersIsAnotherObject) {
  const auto first = Decode(0, "abc");
  const auto other = Decode(1, "abc", /*dim=*/5);
  EXPECT_EQ(other[0], first[0]);
  EXPECT_NE(other[1], first[1]);
  EXPECT_EQ(other[1]->request.tensors[0].dims[0], 5);
  EXPECT_EQ(other[2], first[2]);
}

TEST_F(RequestListDecoderTest, ARequestThatTheEngineHasNamedIsNotRemembered) {
  RequestList list;
  for (const bool is_nameless : {true, false, true}) {
    CollectiveRequest& request = list.requests.emplace_back();
    request.name = is_nameless ? "allreduce 1" : "a";
    request.is_nameless = is_nameless;
  }
  for (const int rank : {0, 1}) {
    const auto decoded = decoder_.Decode({rank}, Encode(list)).value();
    ASSERT_EQ(decoded.requests.size(), 3u);
    for (const int i : {0, 1, 2}) {
      KnownRequest& known = *decoded.requests[i];
      EXPECT_EQ(known.request.name, list.requests[i].name);
      EXPECT_EQ(known.waiting_number, rank == 1 && i == 1 ? 7 : -1);
      known.waiting_number = 7;
    }
  }
}

TEST_F(RequestListDecoderTest, ItForgetsWhatIsTooMuch) {
  RequestList list;
  for (size_t i = 0; i < RequestListDecoder::kMostKnown; ++i) {
    list.requests.emplace_back().name = std::to_string(i);
  }
  for (const int rank : {0, 1, 0}) {
    const auto decoded = decoder_.Decode({rank}, Encode(list)).value();
    ASSERT_EQ(decoded.requests.size(), list.requests.size());
    EXPECT_EQ(decoded.requests.back()->request.name, list.requests.back().name);
    EXPECT_EQ(decoded.requests.back()->waiting_number, -1);
    decoded.requests.back()->waiting_number = rank;
  }
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
  const auto list = DecodeRequestList(Encode(RequestList())).value();
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
