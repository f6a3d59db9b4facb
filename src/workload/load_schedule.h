// SPDX-License-Identifier: Apache-2.0
// workload/load_schedule.h: which call of a plan is due when. The pauses within a session count
// from the end of its answers; sessions start at given times (open loop) or as earlier ones end
// (closed loop). Knows no clock: it is told what time it is. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "workload/load_plan.h"

namespace kvik::workload {

struct ScheduleOptions {
  int64_t begin_us = 0;
  // Open loop: of each session, from begin_us, ascending. Empty: closed loop.
  std::vector<double> starts_s;
  int32_t concurrency = 1;  // closed loop: sessions at once
  double speedup = 1;       // pauses within sessions are divided by it
};

struct DueCall {
  size_t session = 0;
  size_t call = 0;
  int64_t planned_us = 0;  // when it should be sent
};

class LoadSchedule {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // `plan` must outlive it.
  LoadSchedule(const LoadPlan& plan, ScheduleOptions options);

  // The call that is due longest, if one is due; it counts as running then. O(log sessions).
  std::optional<DueCall> Take(int64_t now_us);
  // When the next call is due; kNever: not before another answer has come.
  [[nodiscard]] int64_t next_due_us() const;
  // The answer to the session's running call is complete, or the call failed.
  void OnAnswer(size_t session, int64_t now_us);
  // Every call was answered.
  [[nodiscard]] bool finished() const { return answered_ == total_; }

 private:
  void Start(size_t session, int64_t planned_us);

  const LoadPlan& plan_;
  const ScheduleOptions options_;
  struct Progress {
    int64_t start_us = 0;
    size_t next_call = 0;
  };
  std::vector<Progress> sessions_;
  using Entry = std::pair<int64_t, size_t>;  // planned_us, session
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> due_;
  size_t started_ = 0;  // sessions
  size_t answered_ = 0;
  size_t total_ = 0;
};

}  // namespace kvik::workload
