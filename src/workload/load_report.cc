// SPDX-License-Identifier: Apache-2.0
#include "workload/load_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvik::workload {
namespace {

double Percentile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(at));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

double Millis(int64_t micros) { return static_cast<double>(micros) * 1e-3; }

std::string Row(const char* name, const Distribution& d) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-22s %10.1f %10.1f %10.1f %10.1f\n", name, d.mean, d.p50,
                d.p90, d.p99);
  return line;
}

}  // namespace

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

LoadReport Summarize(const std::vector<RequestRecord>& records, int64_t wall_us) {
  LoadReport report;
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> itl;
  std::vector<double> e2e;
  int64_t segments = 0;
  int32_t multi_segment = 0;
  for (const RequestRecord& record : records) {
    ++report.requests;
    if (!record.error.empty()) {
      ++report.failed;
      continue;
    }
    report.prompt_tokens += record.prompt_tokens;
    report.completion_tokens += record.completion_tokens;
    report.knows_cache = report.knows_cache || record.cached_tokens.has_value();
    report.knows_segments = report.knows_segments || record.cached_segments.has_value();
    report.cached_tokens += record.cached_tokens.value_or(0);
    segments += record.cached_segments.value_or(0);
    multi_segment += record.cached_segments.value_or(0) >= 2 ? 1 : 0;
    ttft.push_back(Millis(record.first_token_us));
    e2e.push_back(Millis(record.end_us));
    if (record.completion_tokens > 1) {
      tpot.push_back(Millis(record.end_us - record.first_token_us) /
                     (record.completion_tokens - 1));
    }
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
  }
  if (good > 0) {
    report.multi_segment_share = static_cast<double>(multi_segment) / good;
    report.mean_segments = static_cast<double>(segments) / good;
  }
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
  if (report.knows_cache) {
    std::snprintf(line, sizeof(line), "hit rate               %9.1f %% of %lld prompt tokens\n",
                  report.hit_rate * 100, static_cast<long long>(report.prompt_tokens));
    text += line;
  }
  if (report.knows_segments) {
    std::snprintf(line, sizeof(line),
                  "segments               %9.2f a request; %.1f %% of requests had 2 or more\n",
                  report.mean_segments, report.multi_segment_share * 100);
    text += line;
  }
  return text;
}

}  // namespace kvik::workload
