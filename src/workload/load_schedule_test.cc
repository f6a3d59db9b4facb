// SPDX-License-Identifier: Apache-2.0
#include "workload/load_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/rng.h"
#include "workload/arrivals.h"

namespace kvik::workload {
namespace {

LoadPlan Plan(size_t sessions, size_t calls, double gap_s) {
  LoadPlan plan;
  for (size_t s = 0; s < sessions; ++s) {
    PlannedSession session;
    for (size_t c = 0; c < calls; ++c) {
      PlannedCall call;
      call.gap_s = gap_s;
      session.calls.push_back(std::move(call));
    }
    plan.sessions.push_back(std::move(session));
  }
  return plan;
}

struct Sent {
  DueCall call;
  int64_t sent_us = 0;
};

// Runs a schedule against a server that takes `service_us` for anything and answers at most
// `servers` calls at once; further ones are taken late.
std::vector<Sent> Drive(LoadSchedule& schedule, ManualClock& clock, int64_t service_us,
                        size_t servers) {
  std::vector<Sent> sent;
  std::vector<std::pair<int64_t, size_t>> running;  // end, session
  while (!schedule.finished()) {
    while (running.size() < servers) {
      const std::optional<DueCall> due = schedule.Take(clock.NowMicros());
      if (!due) {
        break;
      }
      sent.push_back({*due, clock.NowMicros()});
      running.emplace_back(clock.NowMicros() + service_us, due->session);
    }
    int64_t next_us = running.size() < servers ? schedule.next_due_us() : LoadSchedule::kNever;
    for (const auto& [end_us, session] : running) {
      next_us = std::min(next_us, end_us);
    }
    EXPECT_NE(next_us, LoadSchedule::kNever) << "nothing runs and nothing will";
    clock.Set(std::max(next_us, clock.NowMicros()));
    for (size_t i = 0; i < running.size();) {
      if (running[i].first <= clock.NowMicros()) {
        schedule.OnAnswer(running[i].second, clock.NowMicros());
        running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }
  return sent;
}

TEST(LoadSchedule, ClosedLoopKeepsSoManySessionsRunning) {
  const LoadPlan plan = Plan(5, 2, /*gap_s=*/0);
  ManualClock clock(1000);
  LoadSchedule schedule(plan, {.begin_us = 1000, .starts_s = {}, .concurrency = 2});
  const std::vector<Sent> sent = Drive(schedule, clock, /*service_us=*/10, /*servers=*/100);
  ASSERT_EQ(sent.size(), 10U);
  EXPECT_EQ(clock.NowMicros(), 1000 + 6 * 10) << "3 rounds of 2 calls; the last alone";
  for (const Sent& s : sent) {
    EXPECT_EQ(s.call.planned_us, s.sent_us);
  }
  EXPECT_EQ(sent[4].call.session, 2U) << "the third session begins when the first has ended";
  EXPECT_EQ(sent[4].sent_us, 1020);
}

TEST(LoadSchedule, PausesCountFromTheEndOfTheAnswer) {
  LoadPlan plan = Plan(1, 3, /*gap_s=*/2);
  plan.sessions[0].calls[2].not_before_s = 60;
  ManualClock clock(0);
  LoadSchedule schedule(plan, {.starts_s = {0.5}, .speedup = 2});
  const std::vector<Sent> sent = Drive(schedule, clock, /*service_us=*/3'000'000, 100);
  ASSERT_EQ(sent.size(), 3U);
  EXPECT_EQ(sent[0].sent_us, 500'000) << "starts are as given";
  EXPECT_EQ(sent[1].sent_us, 4'500'000) << "half of 2 s after the answer";
  EXPECT_EQ(sent[2].sent_us, 30'500'000) << "not before half of 60 s";
}

TEST(LoadSchedule, OpenLoopPlansDoNotSlipWhenSendingDoes) {
  const LoadPlan plan = Plan(50, 1, 0);
  ManualClock clock(0);
  const std::vector<double> starts =
      ArrivalTimes({.process = ArrivalProcess::kConstant, .per_second = 100}, 50);
  LoadSchedule schedule(plan, {.starts_s = starts});
  const std::vector<Sent> sent = Drive(schedule, clock, /*service_us=*/20'000, /*servers=*/1);
  ASSERT_EQ(sent.size(), 50U);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(sent[i].call.planned_us, static_cast<int64_t>(i) * 10'000);
    EXPECT_EQ(sent[i].sent_us, static_cast<int64_t>(i) * 20'000) << "late, and counted from plan";
  }
}

TEST(LoadSchedule, EveryCallIsSentOnceInOrderAndNeverEarly) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rng rng(seed);
    LoadPlan plan = Plan(1 + rng.Below(20), 1 + rng.Below(5), rng.Uniform());
    const bool open = rng.Below(2) == 1;
    ManualClock clock(77);
    LoadSchedule schedule(plan, {.begin_us = 77,
                                 .starts_s = open ? ArrivalTimes({.per_second = 3, .seed = seed},
                                                                 plan.sessions.size())
                                                  : std::vector<double>(),
                                 .concurrency = static_cast<int32_t>(1 + rng.Below(4))});
    std::vector<size_t> next(plan.sessions.size());
    for (const Sent& s : Drive(schedule, clock, rng.Range(1, 500'000), 1 + rng.Below(4))) {
      EXPECT_EQ(s.call.call, next[s.call.session]++) << "seed " << seed;
      EXPECT_GE(s.sent_us, s.call.planned_us) << "seed " << seed;
    }
    for (size_t i = 0; i < next.size(); ++i) {
      EXPECT_EQ(next[i], plan.sessions[i].calls.size()) << "seed " << seed;
    }
  }
}

TEST(ArrivalTimes, HaveTheRateAndTheSpreadAskedFor) {
  for (const uint64_t seed : {1, 2, 3}) {
    for (const double cv : {0.0, 0.25, 1.0, 3.0}) {
      const ArrivalOptions options = {.process = cv == 0   ? ArrivalProcess::kConstant
                                                 : cv == 1 ? ArrivalProcess::kPoisson
                                                           : ArrivalProcess::kGamma,
                                      .per_second = 4,
                                      .cv = cv,
                                      .seed = seed};
      const std::vector<double> times = ArrivalTimes(options, 20001);
      EXPECT_EQ(times[0], 0);
      double squares = 0;
      for (size_t i = 1; i < times.size(); ++i) {
        ASSERT_GE(times[i], times[i - 1]);
        squares += std::pow(times[i] - times[i - 1], 2) / 20000;
      }
      const double mean = times.back() / 20000;
      EXPECT_NEAR(mean, 0.25, 0.25 * (0.001 + 0.025 * cv)) << "cv " << cv << " seed " << seed;
      EXPECT_NEAR(std::sqrt(std::max(0.0, squares - mean * mean)) / mean, cv, 1e-6 + 0.06 * cv)
          << "cv " << cv << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvik::workload
