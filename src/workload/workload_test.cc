// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "workload/load_report.h"
#include "workload/multi_turn.h"

namespace kvik::workload {
namespace {

TEST(MultiTurn, EqualOptionsGiveEqualTextAndSessionsDiffer) {
  const MultiTurnOptions options{.sessions = 3, .turns = 2, .seed = 7};
  const std::vector<Conversation> a = MakeMultiTurn(options);
  const std::vector<Conversation> b = MakeMultiTurn(options);
  ASSERT_EQ(a.size(), 3U);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].system, a[0].system) << "the system message is shared";
    EXPECT_EQ(a[i].turns, b[i].turns);
    ASSERT_EQ(a[i].turns.size(), 2U);
    EXPECT_NE(a[i].turns[0], a[i].turns[1]);
  }
  EXPECT_NE(a[0].turns[0], a[1].turns[0]);
  EXPECT_NE(MakeMultiTurn({.sessions = 1, .seed = 8})[0].turns[0], a[0].turns[0]);
}

TEST(MultiTurn, NoSystemMessageWhenNotAskedFor) {
  EXPECT_EQ(MakeMultiTurn({.sessions = 1, .turns = 1, .system_words = 0})[0].system, "");
}

TEST(Describe, InterpolatesBetweenSamples) {
  const Distribution d = Describe({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.p50, 2.5);
  EXPECT_DOUBLE_EQ(d.p90, 3.7);
  EXPECT_DOUBLE_EQ(Describe({5}).p99, 5);
  EXPECT_DOUBLE_EQ(Describe({}).p99, 0);
}

RequestRecord Record(int64_t first_us, int64_t end_us, int32_t tokens, int32_t segments) {
  RequestRecord record;
  record.first_token_us = first_us;
  record.end_us = end_us;
  record.prompt_tokens = 100;
  record.completion_tokens = tokens;
  record.cached_tokens = 40;
  record.cached_segments = segments;
  return record;
}

TEST(Summarize, CountsFailuresApartAndRatesByGoodRequests) {
  std::vector<RequestRecord> records = {Record(10'000, 40'000, 4, 2), Record(30'000, 60'000, 1, 1)};
  records.emplace_back().error = "refused";
  const LoadReport report = Summarize(records, 2'000'000);
  EXPECT_EQ(report.requests, 3);
  EXPECT_EQ(report.failed, 1);
  EXPECT_DOUBLE_EQ(report.requests_per_second, 1.0);
  EXPECT_DOUBLE_EQ(report.ttft.mean, 20.0);
  EXPECT_DOUBLE_EQ(report.tpot.mean, 10.0) << "one token has no time per further token";
  EXPECT_DOUBLE_EQ(report.hit_rate, 0.4);
  EXPECT_DOUBLE_EQ(report.multi_segment_share, 0.5);
  EXPECT_THAT(FormatReport(report), testing::HasSubstr("50.0 % of requests had 2 or more"));
}

TEST(Summarize, AJobLastsFromItsFirstPlannedSendToItsLastToken) {
  std::vector<RequestRecord> records = {Record(10'000, 40'000, 4, 2), Record(10'000, 50'000, 4, 2),
                                        Record(10'000, 60'000, 4, 2), Record(0, 0, 1, 0)};
  records[1].turn = 1;
  records[1].planned_us = records[1].sent_us = 1'000'000;
  records[2].session = 1;
  records[3].session = 1;
  records[3].error = "refused";
  const LoadReport report = Summarize(records, 1'000'000);
  EXPECT_EQ(report.jobs, 1) << "a session with a failed request is no finished job";
  EXPECT_DOUBLE_EQ(report.job.mean, 1050);
}

TEST(Summarize, GoalsCountFailedRequestsAndWarmUpCountsNowhere) {
  std::vector<RequestRecord> records = {Record(10'000, 40'000, 4, 1), Record(90'000, 120'000, 4, 1),
                                        Record(10'000, 310'000, 4, 1)};
  records.emplace_back().error = "refused";
  records.push_back(records[0]);
  records.back().warm_up = true;
  const LoadReport report = Summarize(records, 2'000'000, {.ttft_ms = 50, .tpot_ms = 10});
  EXPECT_EQ(report.requests, 4);
  EXPECT_DOUBLE_EQ(report.good_share, 0.25);
  EXPECT_DOUBLE_EQ(report.good_per_second, 0.5);
  EXPECT_THAT(FormatReport(report), testing::HasSubstr("within the goals"));
  EXPECT_FALSE(Summarize(records, 2'000'000).has_goals);
}

TEST(Summarize, SaysWhatWasSentLate) {
  std::vector<RequestRecord> records = {Record(50'000, 60'000, 4, 1), Record(10'000, 60'000, 4, 1)};
  records[0].sent_us = 40'000;
  records[1].sent_us = 9'000;
  const LoadReport report = Summarize(records, 2'000'000);
  EXPECT_EQ(report.late, 1);
  EXPECT_DOUBLE_EQ(report.max_late_ms, 40);
  EXPECT_DOUBLE_EQ(report.ttft.mean, 30) << "from the planned time";
  EXPECT_THAT(FormatReport(report), testing::HasSubstr("late sends"));
}

TEST(Summarize, SaysNothingOfACacheThatTheServerDoesNotTellOf) {
  RequestRecord record;
  record.prompt_tokens = 1;
  const LoadReport report = Summarize({record}, 1);
  EXPECT_FALSE(report.knows_cache);
  EXPECT_THAT(FormatReport(report), testing::Not(testing::HasSubstr("hit rate")));
}

}  // namespace
}  // namespace kvik::workload
