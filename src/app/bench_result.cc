// SPDX-License-Identifier: Apache-2.0
#include "app/bench_result.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/json_parse.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;
using workload::RequestRecord;

Json DistributionJson(const workload::Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}};
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

double Millis(int64_t micros) { return static_cast<double>(micros) * 1e-3; }

Json ToJson(const BenchSummary& summary) {
  const workload::LoadReport& report = summary.report;
  Json json;
  json["workload"] = summary.workload;
  json["model"] = summary.model;
  json["base_url"] = summary.base_url;
  json["seed"] = summary.seed;
  json["requests"] = report.requests;
  json["failed"] = report.failed;
  json["left_out"] = summary.left_out;
  json["seconds"] = report.seconds;
  json["requests_per_second"] = report.requests_per_second;
  json["prompt_tokens"] = report.prompt_tokens;
  json["completion_tokens"] = report.completion_tokens;
  json["output_tokens_per_second"] = report.output_tokens_per_second;
  json["ttft_ms"] = DistributionJson(report.ttft);
  json["tpot_ms"] = DistributionJson(report.tpot);
  json["itl_ms"] = DistributionJson(report.itl);
  json["e2e_ms"] = DistributionJson(report.e2e);
  json["job_ms"] = DistributionJson(report.job);
  json["jobs"] = report.jobs;
  json["cached_tokens"] = report.knows_cache ? Json(report.cached_tokens) : Json();
  json["hit_rate"] = report.knows_cache ? Json(report.hit_rate) : Json();
  json["request_hit_rate"] = report.knows_cache ? Json(report.request_hit_rate) : Json();
  json["prefix_hit_rate"] = report.knows_prefix ? Json(report.prefix_hit_rate) : Json();
  json["mean_segments"] = report.knows_segments ? Json(report.mean_segments) : Json();
  json["multi_segment_share"] = report.knows_segments ? Json(report.multi_segment_share) : Json();
  json["late_sends"] = report.late;
  json["max_late_ms"] = report.max_late_ms;
  json["goodput_share"] = report.has_goals ? Json(report.good_share) : Json();
  json["goodput_per_second"] = report.has_goals ? Json(report.good_per_second) : Json();
  json["differing_outputs"] = OrNull(summary.differing_outputs);
  return json;
}

Json SampleJson(const RequestRecord& record) {
  Json json;
  json["session"] = record.session;
  json["turn"] = record.turn;
  json["planned_ms"] = Millis(record.planned_us);
  json["late_ms"] = Millis(record.sent_us - record.planned_us);
  if (!record.error.empty()) {
    json["error"] = record.error;
    return json;
  }
  json["ttft_ms"] = Millis(record.first_token_us);
  json["tpot_ms"] = OrNull(workload::TpotMillis(record));
  json["e2e_ms"] = Millis(record.end_us);
  json["prompt_tokens"] = record.prompt_tokens;
  json["completion_tokens"] = record.completion_tokens;
  json["cached_tokens"] = OrNull(record.cached_tokens);
  json["prefix_tokens"] = OrNull(record.prefix_tokens);
  json["segments"] = OrNull(record.cached_segments);
  return json;
}

// One sample of a file, with an error that says what is wrong with it.
class SampleReader {
 public:
  explicit SampleReader(const Json& json) : json_(json) {}

  [[nodiscard]] Result<double> Number(const char* name) const {
    const auto it = json_.find(name);
    if (it == json_.end() || !it->is_number()) {
      return Err(ErrorCode::kInvalidInput, "a sample's \"%s\" is missing or not a number", name);
    }
    return it->get<double>();
  }
  [[nodiscard]] Result<int32_t> Integer(const char* name) const {
    KVIK_ASSIGN(const double number, Number(name));
    if (!(number >= 0 && number < 2147483648.0)) {
      return Err(ErrorCode::kInvalidInput, "a sample's \"%s\" is out of range", name);
    }
    return static_cast<int32_t>(number);
  }
  [[nodiscard]] bool Has(const char* name) const {
    const auto it = json_.find(name);
    return it != json_.end() && !it->is_null();
  }

 private:
  const Json& json_;
};

Result<workload::LoadSamples> ReadSamples(const Json& json) {
  if (!json.is_object() || !json.contains("samples") || !json["samples"].is_array() ||
      !json.contains("sessions") || !json["sessions"].is_array()) {
    return Err(ErrorCode::kInvalidInput, "has no samples: it is not a file of kvik bench --save");
  }
  workload::LoadSamples samples;
  for (const Json& element : json["samples"]) {
    const SampleReader reader(element);
    if (reader.Has("error")) {
      continue;
    }
    workload::RequestSample sample;
    KVIK_ASSIGN(sample.session, reader.Integer("session"));
    KVIK_ASSIGN(sample.turn, reader.Integer("turn"));
    KVIK_ASSIGN(sample.ttft_ms, reader.Number("ttft_ms"));
    KVIK_ASSIGN(sample.e2e_ms, reader.Number("e2e_ms"));
    KVIK_ASSIGN(sample.prompt_tokens, reader.Integer("prompt_tokens"));
    if (reader.Has("tpot_ms")) {
      KVIK_ASSIGN(sample.tpot_ms, reader.Number("tpot_ms"));
    }
    if (reader.Has("cached_tokens")) {
      KVIK_ASSIGN(sample.cached_tokens, reader.Integer("cached_tokens"));
    }
    samples.requests.push_back(sample);
  }
  for (const Json& element : json["sessions"]) {
    const SampleReader reader(element);
    workload::JobSample job;
    KVIK_ASSIGN(job.session, reader.Integer("session"));
    KVIK_ASSIGN(job.millis, reader.Number("job_ms"));
    samples.jobs.push_back(job);
  }
  return samples;
}

}  // namespace

std::string SummaryJson(const BenchSummary& summary) {
  return ToJson(summary).dump(2, ' ', false, Json::error_handler_t::replace);
}

Result<void> SaveResult(const std::string& path, const BenchSummary& summary,
                        const std::vector<RequestRecord>& records) {
  Json json;
  json["summary"] = ToJson(summary);
  Json& samples = json["samples"] = Json::array();
  for (const RequestRecord& record : records) {
    if (!record.warm_up) {
      samples.push_back(SampleJson(record));
    }
  }
  Json& sessions = json["sessions"] = Json::array();
  for (const workload::JobRecord& job : workload::Jobs(records)) {
    sessions.push_back({{"session", job.session}, {"job_ms", job.millis}});
  }
  std::ofstream file(path);
  file << json.dump(1, ' ', false, Json::error_handler_t::replace) << '\n';
  file.flush();
  if (!file) {
    return Err(ErrorCode::kUnavailable, "cannot write %s", path.c_str());
  }
  return {};
}

Result<workload::LoadSamples> LoadResult(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Err(ErrorCode::kNotFound, "cannot read %s", path.c_str());
  }
  const Result<Json> json = ParseJson<Json>(text.view(), {.max_nesting = 8, .max_members = 256});
  Result<workload::LoadSamples> samples = json ? ReadSamples(*json) : json.error();
  return samples ? std::move(samples) : samples.error().Wrap(path);
}

std::string ComparisonJson(const std::vector<workload::MetricComparison>& metrics) {
  Json list = Json::array();
  for (const workload::MetricComparison& m : metrics) {
    list.push_back({{"metric", m.metric},
                    {"a", m.a},
                    {"b", m.b},
                    {"ratio", m.ratio},
                    {"low", m.low},
                    {"high", m.high},
                    {"paired", m.paired},
                    {"samples", m.samples}});
  }
  return list.dump(2);
}

}  // namespace kvik::app
