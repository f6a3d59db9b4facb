// SPDX-License-Identifier: Apache-2.0
// workload/load_report.h: what a load measured, request by request and in sum. Pure.
//
// Latencies count from when a request was planned to be sent: a generator that falls behind makes
// them longer and not fewer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvik::workload {

struct RequestRecord {
  int32_t session = 0;
  int32_t turn = 0;              // the call's number within its session, from 0
  bool warm_up = false;          // not measured
  int64_t planned_us = 0;        // from the beginning of the load
  int64_t sent_us = 0;           // likewise; >= planned_us
  int64_t first_token_us = 0;    // from planned to the first text
  int64_t end_us = 0;            // from planned to the end
  std::vector<int64_t> gaps_us;  // between two pieces of text
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  std::optional<int32_t> cached_tokens;    // none = the server does not say
  std::optional<int32_t> prefix_tokens;    // cached ones before the first gap; likewise
  std::optional<int32_t> cached_segments;  // likewise
  std::string text;
  std::vector<int32_t> token_ids;  // of the text, if they were forced or the server told them
  std::vector<double> logprobs;    // of the answer's tokens, if asked for
  std::string error;               // empty = it went well
};

// Milliseconds per output token after the first; none for answers of one token.
std::optional<double> TpotMillis(const RequestRecord& record);

struct Distribution {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
// Percentiles by linear interpolation between the two nearest samples. All 0 for no samples.
Distribution Describe(std::vector<double> samples);
// The percentile `share` in [0, 1] of ascending, not empty `sorted`.
double Percentile(const std::vector<double>& sorted, double share);

// Requests that keep every goal that is set are good.
struct LatencyGoals {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
};

// A request sent this much after its time is late.
constexpr int64_t kLateMicros = 10'000;

struct LoadReport {
  int32_t requests = 0;
  int32_t failed = 0;
  double seconds = 0;
  double requests_per_second = 0;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  double output_tokens_per_second = 0;
  double hit_rate = 0;             // cached tokens per prompt token
  double prefix_hit_rate = 0;      // of those, the ones before the first gap
  double request_hit_rate = 0;     // of requests, those with a cached token
  double multi_segment_share = 0;  // of requests, those that reused two or more segments
  double mean_segments = 0;
  bool knows_cache = false;  // the server told cached tokens
  bool knows_prefix = false;
  bool knows_segments = false;
  int32_t late = 0;
  double max_late_ms = 0;
  bool has_goals = false;
  double good_share = 0;  // of requests, failed ones included
  double good_per_second = 0;
  // Milliseconds.
  Distribution ttft;  // time to the first token
  Distribution tpot;  // per output token after the first
  Distribution itl;   // between two tokens
  Distribution e2e;   // the whole request
  Distribution job;   // a session: its first request planned to its last token, pauses included
  int32_t jobs = 0;   // sessions without a failed request
};

// Warm-up requests count nowhere. `wall_us`: how long the measured part took. Failed requests
// count as such and in the goals; of latencies, tokens and hits only good ones are known.
LoadReport Summarize(const std::vector<RequestRecord>& records, int64_t wall_us,
                     const LatencyGoals& goals = {});

// Milliseconds of every session whose requests are all there and went well, by session.
struct JobRecord {
  int32_t session = 0;
  double millis = 0;
};
std::vector<JobRecord> Jobs(const std::vector<RequestRecord>& records);

// Lines for people, each ended.
std::string FormatReport(const LoadReport& report);

}  // namespace kvik::workload
