// The events that a timeline keeps, and the events that engines add.
#include "tfring_ops/engine/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/engines.h"
#include "tfring_ops/engine/statistics.h"

namespace tfring {
namespace {

using Phase = Timeline::Phase;
using testing::ElementsAre;

CollectiveRequest Request(const std::string& name) {
  CollectiveRequest request;
  request.name = name;
  request.tensors = {{"a", {2, 3}}, {"b", {4}}};
  return request;
}

// Returns the events recorded while `action` runs.
template <typename Action>
Timeline::Recording Recorded(const Action& action,
                             bool mark_responses = false) {
  Timeline::Global().Start(mark_responses);
  action();
  return Timeline::Global().Stop();
}

TEST(TimelineTest, RecordsOnlyBetweenStartAndStop) {
  Timeline& timeline = Timeline::Global();
  EXPECT_EQ(timeline.Now(), 0);
  {
    const TimelineSpan before(Phase::kBucket, Request("before"), 1);
  }
  const Timeline::Recording recording = Recorded([&] {
    // It began before.
    timeline.RecordRequest(Phase::kNegotiate, Request("x"), 0, timeline.Now());
    const int64_t begin = timeline.Now();
    EXPECT_GT(begin, 0);
    CollectiveRequest request = Request("y");
    request.process_set_id = 7;
    timeline.RecordRequest(Phase::kRequest, request, begin, begin + 5);
  });
  timeline.RecordWait("after", 0, 1);
  ASSERT_EQ(recording.events.size(), 1);
  const Timeline::Event& event = recording.events[0];
  EXPECT_EQ(event.name, "y");
  EXPECT_EQ(event.process_set, 7);
  EXPECT_EQ(event.bytes, 40);
  EXPECT_EQ(event.end_ns - event.begin_ns, 5);
  EXPECT_TRUE(timeline.Stop().events.empty());
}

TEST(StatisticsTest, ExposedIsWhatRunsWhileSomethingWaits) {
  Statistics statistics;
  statistics.BeginBucket(100);
  statistics.BeginWait(110);  // exposed from here
  statistics.BeginBucket(115);
  statistics.BeginWait(120);
  statistics.EndBucket(125, 7);
  statistics.EndWait(130);
  statistics.EndWait(140);  // to here
  statistics.EndBucket(150, 8);
  statistics.BeginWait(160);
  statistics.AddNegotiation("a", 30);
  statistics.AddNegotiation("a", 12);
  statistics.AddStall();
  const Statistics::Totals totals = statistics.totals(200);
  EXPECT_EQ(totals.requests, 2);
  EXPECT_EQ(totals.negotiate_ns, 42);
  EXPECT_EQ(totals.buckets, 2);
  EXPECT_EQ(totals.bytes, 15);
  EXPECT_EQ(totals.running_ns, 50);
  EXPECT_EQ(totals.exposed_ns, 30);
  EXPECT_EQ(totals.waits, 2);
  EXPECT_EQ(totals.stalls, 1);
}

TEST(StatisticsTest, AStepEndsWhenANameComesAgain) {
  Statistics statistics;
  for (const char* name : {"a", "b", "c", "a", "b", "once", "c", "b", "a"}) {
    statistics.AddNegotiation(name, 1);
  }
  EXPECT_EQ(statistics.totals(0).steps, 2);
  for (int i = 0; i < 20'000; ++i) {
    statistics.AddNegotiation(std::to_string(i), 1);
  }
  EXPECT_EQ(statistics.totals(0).steps, 2);
}

TEST(StatisticsTest, WhatRunsWhenNothingIsCountedIsForgotten) {
  Statistics statistics;
  statistics.BeginBucket(10);
  statistics.BeginWait(20);
  statistics.Forget(30);
  EXPECT_EQ(statistics.totals(40).running_ns, 20);
  EXPECT_EQ(statistics.totals(40).exposed_ns, 10);
}

TEST(StatisticsTest, WhatHadBegunBeforeDoesNoHarm) {
  Statistics statistics;
  statistics.EndBucket(10, 1);
  statistics.EndWait(20);
  statistics.BeginBucket(30);
  statistics.BeginWait(25);  // read before, by another thread
  const Statistics::Totals totals = statistics.totals(40);
  EXPECT_EQ(totals.running_ns, 10);
  EXPECT_EQ(totals.exposed_ns, 10);
}

TEST(TimelineTest, CountsUntilItIsStoppedAsOftenAsStarted) {
  Timeline& timeline = Timeline::Global();
  const auto counts = [&] {
    const int64_t before = timeline.totals().stalls;
    timeline.CountStall();
    return timeline.totals().stalls > before;
  };
  timeline.StartCounting();
  timeline.StartCounting();
  timeline.StopCounting();
  EXPECT_TRUE(counts());
  EXPECT_NE(timeline.Now(), 0);
  timeline.StopCounting();
  EXPECT_FALSE(counts());
  EXPECT_EQ(timeline.Now(), 0);
}

TEST(TimelineTest, WhatIsTooMuchIsCounted) {
  const Timeline::Recording recording = Recorded([] {
    for (size_t i = 0; i < Timeline::kMaxEvents + 3; ++i) {
      Timeline::Global().RecordWait("x", 0, 1);
    }
  });
  EXPECT_EQ(recording.events.size(), Timeline::kMaxEvents);
  EXPECT_EQ(recording.dropped, 3);
}

TEST(TimelineTest, AnAllreduceOnEveryRank) {
  constexpr int kSize = 3;
  constexpr size_t kCount = 1008;  // which are not padded where they are packed
  Job job(kSize);
  const Entries entries = MakeEntries(kSize, "x", kCount);
  // To be scaled it has to be copied.
  for (int rank = 0; rank < kSize; ++rank) {
    entries[rank]->request.prescale_factor = 2;
    entries[rank]->request.postscale_factor = 0.5;
  }
  const Timeline::Recording recording = Recorded([&] {
    job.Submit(entries);
    ExpectSums(entries);
  });
  // By thread, as each rank's engine has one.
  std::map<int, std::map<Phase, Timeline::Event>> ranks;
  for (const Timeline::Event& event : recording.events) {
    EXPECT_TRUE(ranks[event.thread].emplace(event.phase, event).second);
  }
  ASSERT_EQ(ranks.size(), kSize);
  for (const auto& [thread, of_phase] : ranks) {
    std::vector<Phase> phases;
    for (const auto& [phase, event] : of_phase) {
      phases.push_back(phase);
      EXPECT_EQ(event.name, "x");
      EXPECT_EQ(event.bytes, kCount * sizeof(float));
      EXPECT_LE(event.begin_ns, event.end_ns);
    }
    ASSERT_THAT(phases,
                ElementsAre(Phase::kRequest, Phase::kNegotiate, Phase::kBucket,
                            Phase::kRing, Phase::kPack, Phase::kUnpack));
    const auto begin = [&](Phase phase) { return of_phase.at(phase).begin_ns; };
    const auto end = [&](Phase phase) { return of_phase.at(phase).end_ns; };
    EXPECT_EQ(begin(Phase::kNegotiate), begin(Phase::kRequest));
    EXPECT_LE(end(Phase::kNegotiate), begin(Phase::kBucket));
    EXPECT_LE(begin(Phase::kBucket), begin(Phase::kRing));
    EXPECT_LE(begin(Phase::kRing), begin(Phase::kPack));
    EXPECT_LE(end(Phase::kPack), begin(Phase::kUnpack));
    EXPECT_LE(end(Phase::kUnpack), end(Phase::kRing));
    EXPECT_LE(end(Phase::kRing), end(Phase::kBucket));
    EXPECT_LE(end(Phase::kBucket), end(Phase::kRequest));
  }
}

TEST(TimelineTest, ResponsesWhereTheyAreAskedFor) {
  constexpr int kSize = 2;
  Job job(kSize);
  for (const bool mark_responses : {false, true}) {
    const Timeline::Recording recording =
        Recorded([&] { ExpectWorks(job); }, mark_responses);
    int response_lists = 0;
    for (const Timeline::Event& event : recording.events) {
      response_lists += event.phase == Phase::kResponses;
    }
    EXPECT_EQ(response_lists, mark_responses ? kSize : 0);
  }
}

TEST(TimelineTest, StartsAndStopsWhileEnginesWork) {
  Job job(2);
  std::thread user([] {
    for (int i = 0; i < 50; ++i) Recorded([] { std::this_thread::yield(); });
  });
  for (int i = 0; i < 50; ++i) ExpectWorks(job, "x" + std::to_string(i));
  user.join();
}

}  // namespace
}  // namespace tfring
