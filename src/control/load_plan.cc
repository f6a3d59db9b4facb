// SPDX-License-Identifier: Apache-2.0
#include "control/load_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/format.h"

namespace kvik::control {
namespace {

// Speeds that moved by less do not move the meeting point far enough to matter.
constexpr double kMoved = 1.1;

// Computing tokens [first, end) in steps of step_tokens: the sum of CostModel::StepUs, written as a
// smooth function of both ends, so that pieces add up to the whole.
double ComputeUs(const LoadProblem& problem, double first, double end) {
  const kv::CostModel& cost = problem.compute;
  const double tokens = end - first;
  const double steps = tokens / problem.step_tokens;
  const double squares = end * end - first * first;
  const double cached_tokens = squares / (2.0 * problem.step_tokens) - tokens / 2;
  return problem.compute_factor *
         (steps * (cost.step_us + cost.segment_us) + cost.token_us * tokens +
          cost.cached_token_us * cached_tokens + cost.square_us * squares);
}

// Of missing tokens at positions [first, end).
double ComputeMissingUs(const LoadProblem& problem, int64_t first, int64_t end) {
  double us = 0;
  for (const TokenRange& range : problem.missing) {
    const int64_t from = std::max(first, range.first);
    const int64_t to = std::min(end, range.end);
    if (from < to) {
      us += ComputeUs(problem, static_cast<double>(from), static_cast<double>(to));
    }
  }
  return us;
}

double WireUs(const LoadProblem& problem, const LoadEncoding& encoding) {
  return encoding.wire_bytes * encoding.link_factor * problem.us_per_byte;
}

// The quickest encoding that is good enough by itself, or kCompute.
int32_t BestEncoding(const LoadProblem& problem, const LoadChunk& chunk) {
  int32_t best = LoadPlan::kCompute;
  double best_us = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < chunk.encodings.size(); ++i) {
    const LoadEncoding& encoding = chunk.encodings[i];
    if (!problem.quality.Accepts(encoding.quality)) {
      continue;
    }
    const double wire_us = WireUs(problem, encoding);
    const double us = problem.overlap == Overlap::kSerial ? wire_us + encoding.decode_us
                                                          : std::max(wire_us, encoding.decode_us);
    const double ready_us = std::max(us, encoding.ready_in_us);
    if (ready_us < best_us) {
      best_us = ready_us;
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// Loading so far, from the tail forwards.
struct Loading {
  double wire_us = 0;
  double decode_us = 0;
  double ready_us = 0;
  double last_fill_us = 0;

  void Add(const LoadEncoding& encoding, const LoadProblem& problem) {
    const double wire = WireUs(problem, encoding);
    wire_us += wire;
    decode_us += encoding.decode_us;
    ready_us = std::max(ready_us, encoding.ready_in_us);
    last_fill_us = std::min(wire, encoding.decode_us) / problem.frames_per_chunk;
  }
  [[nodiscard]] double Us(const LoadProblem& problem) const {
    if (wire_us == 0 && decode_us == 0) {
      return 0;
    }
    const double busy_us = problem.overlap == Overlap::kSerial
                               ? wire_us + decode_us
                               : std::max(wire_us, decode_us) + last_fill_us;
    return std::max(problem.load_start_us + busy_us, ready_us);
  }
};

// When the front is done, if the engine shares its cores with decoding until `load_us`.
double FrontUs(const LoadProblem& problem, double compute_us, double load_us) {
  const double beside_us = std::max(0.0, load_us - problem.compute_start_us);
  const double done = beside_us * problem.compute_share;
  const double taken =
      compute_us <= done ? compute_us / problem.compute_share : compute_us + beside_us - done;
  return compute_us == 0 ? 0 : problem.compute_start_us + taken;
}

}  // namespace

LoadPlan PlanLoad(const LoadProblem& problem) {
  KVIK_CHECK(problem.us_per_byte > 0 && problem.frames_per_chunk >= 1 && problem.step_tokens >= 1);
  KVIK_CHECK(problem.compute_share > 0 && problem.compute_share <= 1);
  const size_t n = problem.chunks.size();
  const int64_t end = problem.missing.empty() ? 0 : problem.missing.back().end;
  LoadPlan plan;
  plan.encoding.assign(n, LoadPlan::kCompute);
  std::vector<int32_t> best(n);
  // What computing counts beyond its time. Nobody can choose where nothing can be loaded.
  std::vector<double> surcharge_us(n);
  double surcharges_us = 0;  // of the front
  for (size_t i = 0; i < n; ++i) {
    const LoadChunk& chunk = problem.chunks[i];
    best[i] = BestEncoding(problem, chunk);
    if (best[i] != LoadPlan::kCompute && chunk.compute_weight > 1) {
      surcharge_us[i] = (chunk.compute_weight - 1) *
                        ComputeMissingUs(problem, chunk.tokens.first, chunk.tokens.end);
      surcharges_us += surcharge_us[i];
    }
  }

  const double compute_us = ComputeMissingUs(problem, 0, end);
  plan.all_compute_us = FrontUs(problem, compute_us, 0);
  plan.expected_us = plan.all_compute_us;
  plan.weighed_us = FrontUs(problem, compute_us + surcharges_us, 0);
  plan.front_us = plan.all_compute_us;
  plan.first_loaded = static_cast<int32_t>(n);
  plan.all_load_us = plan.all_compute_us;

  // Meeting points from the tail to the front. `behind_us` is computed when all loads are there:
  // what no chunk covers, and chunks that nobody has. It needs everything before it.
  Loading loading;
  double wire_bytes = 0;
  double behind_us = 0;
  int64_t from = end;
  for (size_t i = n; i-- > 0;) {
    const TokenRange& tokens = problem.chunks[i].tokens;
    behind_us += ComputeMissingUs(problem, tokens.end, from);
    from = tokens.first;
    if (best[i] == LoadPlan::kCompute) {
      behind_us += ComputeMissingUs(problem, tokens.first, tokens.end);
      continue;
    }
    const LoadEncoding& encoding = problem.chunks[i].encodings[static_cast<size_t>(best[i])];
    loading.Add(encoding, problem);
    wire_bytes += encoding.wire_bytes;
    const double load_us = loading.Us(problem);
    surcharges_us = i == 0 ? 0 : surcharges_us - surcharge_us[i];  // exactly 0 in the end
    const double front_compute_us = ComputeMissingUs(problem, 0, from);
    const double front_us = FrontUs(problem, front_compute_us, load_us);
    const double ready_us = std::max(load_us, problem.compute_start_us);
    const double us = std::max(ready_us, front_us) + behind_us;
    const double weighed_us =
        std::max(ready_us, FrontUs(problem, front_compute_us + surcharges_us, load_us)) + behind_us;
    if (weighed_us < plan.weighed_us) {
      plan.weighed_us = weighed_us;
      plan.expected_us = us;
      plan.first_loaded = static_cast<int32_t>(i);
      plan.load_us = load_us;
      plan.front_us = front_us;
      plan.wire_bytes = wire_bytes;
    }
    plan.all_load_us = us;
  }
  std::copy(best.begin() + plan.first_loaded, best.end(),
            plan.encoding.begin() + plan.first_loaded);
  plan.in_time = problem.slo_us == 0 || plan.expected_us <= static_cast<double>(problem.slo_us);
  return plan;
}

bool SpeedsMoved(const LoadProblem& planned, double us_per_byte, double compute_factor) {
  const auto moved = [](double a, double b) { return std::max(a, b) > kMoved * std::min(a, b); };
  return moved(planned.us_per_byte, us_per_byte) || moved(planned.compute_factor, compute_factor);
}

std::string WhyText(const LoadPlan& plan) {
  const auto loaded = static_cast<size_t>(
      std::count_if(plan.encoding.begin(), plan.encoding.end(),
                    [](int32_t encoding) { return encoding != LoadPlan::kCompute; }));
  return Format(
      "%zu of %zu chunks loaded (%.2f MB): %.1f ms expected, load %.1f ms beside computing "
      "%.1f ms; all loaded %.1f ms, all computed %.1f ms%s",
      loaded, plan.encoding.size(), plan.wire_bytes / 1e6, plan.expected_us / 1e3,
      plan.load_us / 1e3, plan.front_us / 1e3, plan.all_load_us / 1e3, plan.all_compute_us / 1e3,
      plan.in_time ? "" : "; not in time");
}

void ComputePace::Add(double modelled_us, double observed_us) {
  KVIK_CHECK(modelled_us > 0);
  const double sample = std::clamp(observed_us / modelled_us, 1.0 / 64, 64.0);
  factor_ = measured_ ? factor_ + alpha_ * (sample - factor_) : sample;
  measured_ = true;
}

}  // namespace kvik::control
