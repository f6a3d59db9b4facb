// SPDX-License-Identifier: Apache-2.0
// workload/load_report.h: what a load measured, request by request and in sum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvik::workload {

struct RequestRecord {
  int32_t session = 0;
  int32_t turn = 0;
  int64_t first_token_us = 0;    // from sending to the first text
  int64_t end_us = 0;            // from sending to the end
  std::vector<int64_t> gaps_us;  // between two pieces of text
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  std::optional<int32_t> cached_tokens;    // none = the server does not say
  std::optional<int32_t> cached_segments;  // likewise
  std::string text;
  std::string error;  // empty = it went well
};

struct Distribution {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
// Percentiles by linear interpolation between the two nearest samples. All 0 for no samples.
Distribution Describe(std::vector<double> samples);

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
  double multi_segment_share = 0;  // of requests, those that reused two or more segments
  double mean_segments = 0;
  bool knows_cache = false;  // the server told cached tokens
  bool knows_segments = false;
  // Milliseconds.
  Distribution ttft;  // time to the first token
  Distribution tpot;  // per output token after the first
  Distribution itl;   // between two tokens
  Distribution e2e;   // the whole request
};

LoadReport Summarize(const std::vector<RequestRecord>& records, int64_t wall_us);

// Lines for people, each ended.
std::string FormatReport(const LoadReport& report);

}  // namespace kvik::workload
