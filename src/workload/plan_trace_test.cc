// SPDX-License-Identifier: Apache-2.0
#include "workload/plan_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "workload/agent_load.h"
#include "workload/long_context.h"
#include "workload/multi_turn.h"
#include "workload/token_load.h"

namespace kvik::workload {
namespace {

std::vector<double> StartsOf(const LoadPlan& plan) {
  std::vector<double> starts_s;
  for (const PlannedSession& session : plan.sessions) {
    starts_s.push_back(session.start_s);
  }
  return starts_s;
}

size_t CommonBlocks(const TraceRequest& a, const TraceRequest& b) {
  return static_cast<size_t>(
      std::mismatch(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end()).first -
      a.blocks.begin());
}

// What holds of every trace that sessions made; calls `each` with a request and the turn before.
template <typename Each>
void CheckSessions(const Trace& trace, size_t sessions, const Each& each) {
  std::vector<const TraceRequest*> last(sessions, nullptr);
  int64_t before_us = std::numeric_limits<int64_t>::min();
  for (const TraceRequest& request : trace.requests) {
    EXPECT_GE(request.arrival_us, before_us);
    before_us = request.arrival_us;
    EXPECT_EQ(request.blocks.size(),
              static_cast<size_t>(request.input_tokens / trace.block_size_tokens));
    const TraceRequest*& previous = last[static_cast<size_t>(request.session)];
    EXPECT_EQ(request.turn, previous == nullptr ? 1 : previous->turn + 1);
    if (previous != nullptr) {
      EXPECT_EQ(request.arrival_us, previous->arrival_us + request.gap_us);
    }
    each(request, previous);
    previous = &request;
  }
}

TEST(PlanTrace, LongContextTurnsExtendEachOtherAndShareOnlyTheHead) {
  LongContextOptions options = *LongContextNamed("longbench:5");
  options.requests = 40;
  options.seed = 3;
  const LoadPlan plan = PlanLongContext(options);
  const Trace trace = TraceOf(plan, StartsOf(plan), 64);
  ASSERT_EQ(trace.requests.size(), 40U);
  const auto shared = static_cast<size_t>(MakeLongContext(options).shared_tokens / 64);
  CheckSessions(
      trace, plan.sessions.size(), [&](const TraceRequest& request, const TraceRequest* previous) {
        if (previous != nullptr) {
          EXPECT_GE(request.input_tokens, previous->input_tokens + previous->output_tokens);
          EXPECT_EQ(CommonBlocks(request, *previous), previous->blocks.size());
        }
        for (const TraceRequest& other : trace.requests) {
          if (other.session != request.session) {
            EXPECT_EQ(CommonBlocks(request, other),
                      std::min({shared, request.blocks.size(), other.blocks.size()}));
          }
        }
      });
}

TEST(PlanTrace, AgentsRepeatWhatWasSaidAndTheirLastAnswerCallsNoTool) {
  const LoadPlan plan = PlanAgent(MadeUpAgentMaterial(), {.sessions = 6, .seed = 5});
  const std::vector<double> starts_s = {0, 1, 2, 3, 5, 8};
  const Trace trace = TraceOf(plan, starts_s, 16);
  ASSERT_EQ(trace.requests.size(), plan.calls());
  CheckSessions(
      trace, plan.sessions.size(), [&](const TraceRequest& request, const TraceRequest* previous) {
        const auto session = static_cast<size_t>(request.session);
        const size_t calls = plan.sessions[session].calls.size();
        EXPECT_EQ(request.tool_call, static_cast<size_t>(request.turn) < calls);
        if (previous == nullptr) {
          EXPECT_EQ(request.arrival_us, static_cast<int64_t>(starts_s[session] * 1e6));
        } else {
          EXPECT_EQ(CommonBlocks(request, *previous), previous->blocks.size());
          EXPECT_GT(request.input_tokens, previous->input_tokens + previous->output_tokens);
        }
        EXPECT_GE(CommonBlocks(request, trace.requests.front()), 20U) << "they share their tools";
      });
}

TEST(PlanTrace, AnswersLeftToTheModelAreLikeNoOther) {
  const LoadPlan plan = PlanMultiTurn({.sessions = 2, .turns = 3, .system_words = 40}, 32);
  const std::vector<double> starts_s = {0, 0};
  const Trace trace = TraceOf(plan, starts_s, 16);
  ASSERT_EQ(trace.requests.size(), 6U);
  for (const TraceRequest& request : trace.requests) {
    EXPECT_EQ(request.output_tokens, 32);
    EXPECT_FALSE(request.tool_call);
    for (const TraceRequest& other : trace.requests) {
      const size_t shorter = std::min(request.blocks.size(), other.blocks.size());
      if (request.session == other.session) {
        EXPECT_EQ(CommonBlocks(request, other), shorter);
      } else {
        EXPECT_LT(CommonBlocks(request, other), shorter);
      }
    }
  }
}

TEST(PlanTrace, IsAFunctionOfThePlan) {
  const LoadPlan plan = PlanSharedDocs({.requests = 20, .seed = 1});
  const std::vector<double> starts_s(plan.sessions.size(), 0.5);
  const Trace a = TraceOf(plan, starts_s, 16);
  const Trace b = TraceOf(plan, starts_s, 16);
  ASSERT_EQ(a.requests.size(), 20U);
  for (size_t i = 0; i < a.requests.size(); ++i) {
    EXPECT_EQ(a.requests[i].blocks, b.requests[i].blocks);
    EXPECT_EQ(a.requests[i].arrival_us, 500'000);
  }
}

}  // namespace
}  // namespace kvik::workload
