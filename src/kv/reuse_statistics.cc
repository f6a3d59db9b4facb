// SPDX-License-Identifier: Apache-2.0
#include "kv/reuse_statistics.h"

#include <algorithm>
#include <cmath>

namespace kvik::kv {
namespace {

constexpr double kFirstLifespanS[kReuseClasses] = {600, 60};
constexpr double kLifespanQuantile = 0.99;
constexpr int64_t kGapsBeforeLearning = 200;
constexpr int64_t kUpdateEveryUs = 30'000'000;
constexpr double kLeastLifespanS = 0.1;
// Half of what was seen is forgotten in 35 minutes.
constexpr double kDecayPerUpdate = 0.99;
// The tool factor starts at 1 and counts for half after so many tool calls.
constexpr double kPriorRequests = 20;

// Gaps longer than it takes to evict so many blocks go unseen.
size_t GhostCapacity(int32_t num_blocks) {
  return std::clamp<size_t>(4 * static_cast<size_t>(num_blocks), size_t{1} << 17, size_t{1} << 22);
}

}  // namespace

ReuseStatistics::ReuseStatistics(double fixed_lifespan_s, int32_t num_blocks)
    : learns_lifespans_(fixed_lifespan_s == 0), ghosts_(GhostCapacity(num_blocks)) {
  for (size_t i = 0; i < kReuseClasses; ++i) {
    classes_[i].lifespan_s = learns_lifespans_ ? kFirstLifespanS[i] : fixed_lifespan_s;
  }
}

void ReuseStatistics::Departed(ReuseClass cls) { ClassOf(cls).departed += 1; }

void ReuseStatistics::Returned(const LastRelease& release, int64_t now_us, int64_t count) {
  Class& c = ClassOf(release.cls);
  c.gaps.Add(std::max<int64_t>(now_us - release.time_us, 0), count);
  if (release.awaits_return) {
    c.returned += 1;
  }
}

void ReuseStatistics::Missed(std::span<const uint64_t> contents, int64_t now_us) {
  for (const uint64_t content : contents) {
    if (const auto release = ghosts_.Take(content)) {
      Returned(*release, now_us, 1);
    }
  }
}

bool ReuseStatistics::Tick(int64_t now_us) {
  if (!last_update_us_) {
    last_update_us_ = now_us;
  }
  if (now_us - *last_update_us_ < kUpdateEveryUs) {
    return false;
  }
  last_update_us_ = now_us;
  for (Class& c : classes_) {
    if (learns_lifespans_ && c.gaps.num_samples() >= kGapsBeforeLearning) {
      c.lifespan_s = std::max(c.gaps.QuantileSeconds(kLifespanQuantile), kLeastLifespanS);
    }
    c.gaps.Decay(kDecayPerUpdate);
    c.departed *= kDecayPerUpdate;
    c.returned *= kDecayPerUpdate;
  }
  return learns_lifespans_;
}

double ReuseStatistics::LnReturnFactor(ReuseClass cls) const {
  if (cls == ReuseClass::kChat) {
    return 0;
  }
  const Class& chat = ClassOf(ReuseClass::kChat);
  const Class& tool = ClassOf(ReuseClass::kTool);
  const double any = (chat.returned + tool.returned + 1) / (chat.departed + tool.departed + 2);
  const double after_tool =
      (tool.returned + kPriorRequests * any) / (tool.departed + kPriorRequests);
  return std::log(after_tool / any);
}

}  // namespace kvik::kv
