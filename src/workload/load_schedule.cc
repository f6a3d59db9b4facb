// SPDX-License-Identifier: Apache-2.0
#include "workload/load_schedule.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvik::workload {
namespace {

int64_t Micros(double seconds) { return std::llround(seconds * 1e6); }

}  // namespace

LoadSchedule::LoadSchedule(const LoadPlan& plan, ScheduleOptions options)
    : plan_(plan),
      options_(std::move(options)),
      sessions_(plan.sessions.size()),
      total_(plan.calls()) {
  const bool open = !options_.starts_s.empty();
  KVIK_CHECK(options_.concurrency > 0 && options_.speedup > 0);
  KVIK_CHECK(!open || options_.starts_s.size() == plan.sessions.size());
  const size_t first =
      open ? plan.sessions.size()
           : std::min(plan.sessions.size(), static_cast<size_t>(options_.concurrency));
  while (started_ < first) {
    Start(started_, options_.begin_us + (open ? Micros(options_.starts_s[started_]) : 0));
  }
}

void LoadSchedule::Start(size_t session, int64_t planned_us) {
  sessions_[session].start_us = planned_us;
  due_.emplace(planned_us, session);
  ++started_;
}

std::optional<DueCall> LoadSchedule::Take(int64_t now_us) {
  if (due_.empty() || due_.top().first > now_us) {
    return std::nullopt;
  }
  const auto [planned_us, session] = due_.top();
  due_.pop();
  return DueCall{session, sessions_[session].next_call++, planned_us};
}

int64_t LoadSchedule::next_due_us() const { return due_.empty() ? kNever : due_.top().first; }

void LoadSchedule::OnAnswer(size_t session, int64_t now_us) {
  ++answered_;
  const Progress& progress = sessions_[session];
  const std::vector<PlannedCall>& calls = plan_.sessions[session].calls;
  if (progress.next_call < calls.size()) {
    const PlannedCall& next = calls[progress.next_call];
    due_.emplace(std::max(now_us + Micros(next.gap_s / options_.speedup),
                          progress.start_us + Micros(next.not_before_s / options_.speedup)),
                 session);
  } else if (started_ < sessions_.size()) {
    Start(started_, now_us);
  }
}

}  // namespace kvik::workload
