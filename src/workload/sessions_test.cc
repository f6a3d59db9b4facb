// SPDX-License-Identifier: Apache-2.0
#include "workload/sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvik::workload {
namespace {

using testing::ElementsAre;

TraceRequest Request(std::vector<uint64_t> blocks, int64_t session = -1) {
  TraceRequest request;
  request.blocks = std::move(blocks);
  request.session = session;
  return request;
}

std::vector<std::pair<int64_t, int32_t>> SessionsAndTurns(const Trace& trace) {
  std::vector<std::pair<int64_t, int32_t>> found;
  for (const TraceRequest& request : trace.requests) {
    found.emplace_back(request.session, request.turn);
  }
  return found;
}

TEST(Sessions, AreFoundByExtension) {
  Trace trace;
  trace.requests = {Request({1, 2, 3}), Request({1, 9, 8}), Request({1, 2, 3, 4, 5}),
                    Request({1, 9, 8, 7}), Request({1, 2, 3, 4, 5, 6})};
  AnnotateSessions(trace);
  using P = std::pair<int64_t, int32_t>;
  EXPECT_THAT(SessionsAndTurns(trace), ElementsAre(P(0, 1), P(1, 1), P(0, 2), P(1, 2), P(0, 3)));
}

TEST(Sessions, ThatTheTraceNamesAreKeptAndTheirTurnsCounted) {
  Trace trace;
  trace.requests = {Request({1, 2}, 7), Request({1, 2, 3}, 3), Request({5}, 7)};
  AnnotateSessions(trace);
  using P = std::pair<int64_t, int32_t>;
  EXPECT_THAT(SessionsAndTurns(trace), ElementsAre(P(7, 1), P(3, 1), P(7, 2)));
}

TEST(Sessions, ASampleKeepsWholeSessionsAndNumbersThemAgain) {
  Trace trace;
  trace.name = "t";
  for (uint64_t s = 0; s < 24; ++s) {  // two turns of each
    trace.requests.push_back(Request({100 * s, 100 * s + 1}));
  }
  for (uint64_t s = 0; s < 24; ++s) {
    trace.requests.push_back(Request({100 * s, 100 * s + 1, 100 * s + 2}));
  }
  AnnotateSessions(trace);
  SampleSessions(trace, 8);
  // The multiplier is 1 modulo 8: sessions 0, 8 and 16 stay.
  ASSERT_EQ(trace.requests.size(), 6U);
  std::vector<uint64_t> first_blocks;
  for (const TraceRequest& request : trace.requests) {
    first_blocks.push_back(request.blocks.front());
  }
  EXPECT_THAT(first_blocks, ElementsAre(0, 800, 1600, 0, 800, 1600));
  using P = std::pair<int64_t, int32_t>;
  EXPECT_THAT(SessionsAndTurns(trace),
              ElementsAre(P(0, 1), P(1, 1), P(2, 1), P(0, 2), P(1, 2), P(2, 2)));
  EXPECT_EQ(trace.name, "t/8");
}

}  // namespace
}  // namespace kvik::workload
