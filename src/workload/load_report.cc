// SPDX-License-Identifier: Apache-2.0
#include "workload/load_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

namespace kvik::workload {
namespace {

double Millis(int64_t micros) { return static_cast<double>(micros) * 1e-3; }

std::string Row(const char* name, const Distribution& d) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-22s %10.1f %10.1f %10.1f %10.1f\n", name, d.mean, d.p50,
                d.p90, d.p99);
  return line;
}

}  // namespace

double Percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

std::optional<double> TpotMillis(const RequestRecord& record) {
  if (record.completion_tokens < 2) {
    return std::nullopt;
  }
  return Millis(record.end_us - record.first_token_us) / (record.completion_tokens - 1);
}

Distribution Describe(std::vector<double> samples) {
  if (samples.empty()) {
    return {};
  }
  std::sort(samples.begin(), samples.end());
  double sum = 0;
  for (const double sample : samples) {
    sum += sample;
  }
  return {sum / static_cast<double>(samples.size()), Percentile(samples, 0.5),
          Percentile(samples, 0.9), Percentile(samples, 0.99)};
}

std::vector<JobRecord> Jobs(const std::vector<RequestRecord>& records) {
  struct Job {
    int64_t begin_us = std::numeric_limits<int64_t>::max();
    int64_t end_us = 0;
    bool good = true;
  };
  std::map<int32_t, Job> by_session;
  for (const RequestRecord& record : records) {
    if (record.warm_up) {
      continue;
    }
    Job& job = by_session[record.session];
    job.begin_us = std::min(job.begin_us, record.planned_us);
    job.end_us = std::max(job.end_us, record.planned_us + record.end_us);
    job.good = job.good && record.error.empty();
  }
  std::vector<JobRecord> jobs;
  for (const auto& [session, job] : by_session) {
    if (job.good) {
      jobs.push_back({session, Millis(job.end_us - job.begin_us)});
    }
  }
  return jobs;
}

LoadReport Summarize(const std::vector<RequestRecord>& records, int64_t wall_us,
                     const LatencyGoals& goals) {
  LoadReport report;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> itl;
  std::vector<double> e2e;
  int64_t segments = 0;
  int32_t multi_segment = 0;
  int64_t prefix_tokens = 0;
  int32_t with_hit = 0;
  int32_t within_goals = 0;
  for (const RequestRecord& record : records) {
    if (record.warm_up) {
      continue;
    }
    ++report.requests;
    const int64_t late_us = record.sent_us - record.planned_us;
    report.late += late_us > kLateMicros ? 1 : 0;
    report.max_late_ms = std::max(report.max_late_ms, Millis(late_us));
    if (!record.error.empty()) {
      ++report.failed;
      continue;
    }
    report.prompt_tokens += record.prompt_tokens;
    report.completion_tokens += record.completion_tokens;
    report.knows_cache = report.knows_cache || record.cached_tokens.has_value();
    report.knows_segments = report.knows_segments || record.cached_segments.has_value();
    report.cached_tokens += record.cached_tokens.value_or(0);
    report.knows_prefix = report.knows_prefix || record.prefix_tokens.has_value();
    prefix_tokens += record.prefix_tokens.value_or(0);
    with_hit += record.cached_tokens.value_or(0) > 0 ? 1 : 0;
    segments += record.cached_segments.value_or(0);
    multi_segment += record.cached_segments.value_or(0) >= 2 ? 1 : 0;
    ttft.push_back(Millis(record.first_token_us));
    e2e.push_back(Millis(record.end_us));
    const std::optional<double> request_tpot = TpotMillis(record);
    if (request_tpot) {
      tpot.push_back(*request_tpot);
    }
    const bool good = (!goals.ttft_ms || Millis(record.first_token_us) <= *goals.ttft_ms) &&
                      (!goals.tpot_ms || request_tpot.value_or(0) <= *goals.tpot_ms);
    within_goals += good ? 1 : 0;
    for (const int64_t gap : record.gaps_us) {
      itl.push_back(Millis(gap));
    }
  }
  const int32_t good = report.requests - report.failed;
  report.seconds = static_cast<double>(wall_us) * 1e-6;
  if (report.seconds > 0) {
    report.requests_per_second = good / report.seconds;
    report.output_tokens_per_second =
        static_cast<double>(report.completion_tokens) / report.seconds;
  }
  if (report.prompt_tokens > 0) {
    report.hit_rate =
        static_cast<double>(report.cached_tokens) / static_cast<double>(report.prompt_tokens);
    report.prefix_hit_rate =
        static_cast<double>(prefix_tokens) / static_cast<double>(report.prompt_tokens);
  }
  if (good > 0) {
    report.multi_segment_share = static_cast<double>(multi_segment) / good;
    report.request_hit_rate = static_cast<double>(with_hit) / good;
    report.mean_segments = static_cast<double>(segments) / good;
  }
  report.has_goals = goals.ttft_ms.has_value() || goals.tpot_ms.has_value();
  if (report.has_goals && report.requests > 0) {
    report.good_share = static_cast<double>(within_goals) / report.requests;
    report.good_per_second = report.seconds > 0 ? within_goals / report.seconds : 0;
  }
  std::vector<double> jobs;
  for (const JobRecord& job : Jobs(records)) {
    jobs.push_back(job.millis);
  }
  report.jobs = static_cast<int32_t>(jobs.size());
  report.job = Describe(std::move(jobs));
  report.ttft = Describe(std::move(ttft));
  report.tpot = Describe(std::move(tpot));
  report.itl = Describe(std::move(itl));
  report.e2e = Describe(std::move(e2e));
  return report;
}

std::string FormatReport(const LoadReport& report) {
  char line[200];
  std::string text;
  std::snprintf(line, sizeof(line),
                "%d requests (%d failed) in %.1f s: %.2f requests/s, %.1f output tokens/s\n",
                report.requests, report.failed, report.seconds, report.requests_per_second,
                report.output_tokens_per_second);
  text += line;
  std::snprintf(line, sizeof(line), "%-22s %10s %10s %10s %10s\n", "milliseconds", "mean", "P50",
                "P90", "P99");
  text += line;
  text += Row("TTFT", report.ttft);
  text += Row("TPOT", report.tpot);
  text += Row("ITL", report.itl);
  text += Row("E2E", report.e2e);
  if (report.jobs > 0 && report.jobs < report.requests) {  // else a job is a request
    text += Row("job", report.job);
  }
  if (report.knows_cache) {
    std::snprintf(line, sizeof(line), "hit rate               %9.1f %% of %lld prompt tokens\n",
                  report.hit_rate * 100, static_cast<long long>(report.prompt_tokens));
    text += line;
    std::snprintf(line, sizeof(line), "requests with a hit    %9.1f %%\n",
                  report.request_hit_rate * 100);
    text += line;
  }
  if (report.knows_prefix) {
    std::snprintf(line, sizeof(line), "prefix hit rate        %9.1f %%: before the first gap\n",
                  report.prefix_hit_rate * 100);
    text += line;
  }
  if (report.knows_segments) {
    std::snprintf(line, sizeof(line),
                  "segments               %9.2f a request; %.1f %% of requests had 2 or more\n",
                  report.mean_segments, report.multi_segment_share * 100);
    text += line;
  }
  if (report.has_goals) {
    std::snprintf(line, sizeof(line),
                  "within the goals       %9.1f %% of requests: %.3f requests/s\n",
                  report.good_share * 100, report.good_per_second);
    text += line;
  }
  if (report.late > 0) {
    std::snprintf(line, sizeof(line),
                  "late sends             %9d requests, up to %.0f ms: counted in their latency\n",
                  report.late, report.max_late_ms);
    text += line;
  }
  return text;
}

}  // namespace kvik::workload
