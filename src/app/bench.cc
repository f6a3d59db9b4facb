// SPDX-License-Identifier: Apache-2.0
#include "app/bench.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json_parse.h"
#include "base/mutex.h"
#include "server/http.h"
#include "server/sse.h"
#include "workload/load_report.h"

namespace kvik::app {
namespace {

using Json = nlohmann::ordered_json;
using workload::Conversation;
using workload::RequestRecord;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// What a server sent or a file holds; null if it is not a JSON object.
Json ParseObject(std::string_view text) {
  Result<Json> json = ParseJson<Json>(text, {.max_members = 4096});
  return json && json->is_object() ? *std::move(json) : Json();
}

// Null when there is no such member, or `json` has no members. Other servers may answer anything.
const Json& Member(const Json& json, const char* key) {
  static const Json kNull;
  const auto it = json.find(key);
  return it == json.end() ? kNull : *it;
}

std::optional<int32_t> Integer(const Json& json) {
  return json.is_number_integer() ? std::optional(json.get<int32_t>()) : std::nullopt;
}

// The message of an OpenAI error body, or the body.
std::string ErrorText(const server::HttpReply& reply) {
  const Json json = ParseObject(reply.body);
  const Json& message = Member(Member(json, "error"), "message");
  return "HTTP " + std::to_string(reply.status) + ": " +
         (message.is_string() ? message.get<std::string>() : reply.body.substr(0, 200));
}

Result<std::string> FirstModel(server::HttpClient& client) {
  KVIK_ASSIGN(const server::HttpReply reply, client.Get("/v1/models"));
  if (reply.status != 200) {
    return Err(ErrorCode::kUnavailable, "/v1/models: %s", ErrorText(reply).c_str());
  }
  const Json json = ParseObject(reply.body);
  const Json& models = Member(json, "data");
  if (!models.is_array() || models.empty() || !Member(models[0], "id").is_string()) {
    return Err(ErrorCode::kUnavailable, "/v1/models lists no model; name one with --model");
  }
  return Member(models[0], "id").get<std::string>();
}

// Takes the events of one streamed answer.
class AnswerReader {
 public:
  AnswerReader(const Clock& clock, RequestRecord& record)
      : clock_(clock), record_(record), start_us_(clock.NowMicros()) {}

  void OnBytes(std::string_view bytes) {
    for (const std::string& data : parser_.Push(bytes)) {
      if (data == "[DONE]") {
        done_ = true;
        continue;
      }
      const Json chunk = ParseObject(data);
      if (!chunk.is_object()) {
        record_.error = "a chunk of the stream is not JSON";
      } else {
        OnChunk(chunk);
      }
    }
  }
  void Finish() {
    record_.end_us = clock_.NowMicros() - start_us_;
    if (record_.error.empty() && !done_) {
      record_.error = "the stream ended before [DONE]";
    }
    if (record_.first_token_us == 0) {
      record_.first_token_us = record_.end_us;  // an answer without text
    }
  }

 private:
  void OnChunk(const Json& chunk) {
    if (chunk.contains("error")) {
      record_.error = Dump(chunk["error"]).substr(0, 200);
      return;
    }
    if (const Json& choices = Member(chunk, "choices"); choices.is_array() && !choices.empty()) {
      const Json& content = Member(Member(choices[0], "delta"), "content");
      if (content.is_string() && !content.get_ref<const std::string&>().empty()) {
        OnText(content.get_ref<const std::string&>());
      }
    }
    if (const Json& usage = Member(chunk, "usage"); usage.is_object()) {
      record_.prompt_tokens = Integer(Member(usage, "prompt_tokens")).value_or(0);
      record_.completion_tokens = Integer(Member(usage, "completion_tokens")).value_or(0);
      record_.cached_tokens =
          Integer(Member(Member(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    if (const std::optional<int32_t> segments =
            Integer(Member(Member(chunk, "kvik"), "segments"))) {
      record_.cached_segments = segments;
    }
  }
  void OnText(const std::string& text) {
    const int64_t now_us = clock_.NowMicros() - start_us_;
    if (record_.first_token_us == 0) {
      record_.first_token_us = now_us;
    } else {
      record_.gaps_us.push_back(now_us - last_text_us_);
    }
    last_text_us_ = now_us;
    record_.text += text;
  }

  const Clock& clock_;
  RequestRecord& record_;
  const int64_t start_us_;
  server::SseParser parser_;
  int64_t last_text_us_ = 0;
  bool done_ = false;
};

// Answers of an earlier run, one JSON object a line.
class RecordedOutputs {
 public:
  static Result<RecordedOutputs> Load(const std::string& path) {
    RecordedOutputs recorded;
    std::ifstream file(path);
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const Json json = ParseObject(line);
      if (!Member(json, "text").is_string() || !Member(json, "session").is_number_integer() ||
          !Member(json, "turn").is_number_integer()) {
        return Err(ErrorCode::kInvalidInput, "%s:%d: not a recorded answer; remove the file",
                   path.c_str(), number);
      }
      recorded.texts_[{json["session"].get<int32_t>(), json["turn"].get<int32_t>()}] =
          json["text"].get<std::string>();
    }
    return recorded;
  }
  static Result<void> Save(const std::string& path, const std::vector<RequestRecord>& records) {
    std::ofstream file(path);
    for (const RequestRecord& record : records) {
      file << Dump({{"session", record.session}, {"turn", record.turn}, {"text", record.text}})
           << '\n';
    }
    file.flush();
    if (!file) {
      return Err(ErrorCode::kUnavailable, "cannot write %s", path.c_str());
    }
    return {};
  }
  // Answers that are missing on either side or not the same.
  [[nodiscard]] int32_t CountDifferences(const std::vector<RequestRecord>& records) const {
    int32_t same = 0;
    for (const RequestRecord& record : records) {
      const auto it = texts_.find({record.session, record.turn});
      same += it != texts_.end() && it->second == record.text ? 1 : 0;
    }
    return static_cast<int32_t>(std::max(texts_.size(), records.size())) - same;
  }

 private:
  std::map<std::pair<int32_t, int32_t>, std::string> texts_;
};

class LoadRunner {
 public:
  LoadRunner(const BenchOptions& options, std::string model, const Clock& clock)
      : options_(options),
        model_(std::move(model)),
        clock_(clock),
        conversations_(workload::MakeMultiTurn(options.load)) {}

  struct Outcome {
    std::vector<RequestRecord> records;  // by session, then turn
    int64_t wall_us = 0;
  };
  Outcome Pass(const std::string& label, const std::string& salt) {
    const auto turns = static_cast<size_t>(options_.load.turns);
    Outcome outcome;
    outcome.records.resize(conversations_.size() * turns);
    Progress progress(clock_,
                      {.label = label, .total = outcome.records.size(), .mode = options_.progress});
    Mutex progress_mutex;
    uint64_t finished = 0;
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t session = next++; session < conversations_.size(); session = next++) {
        RunSession(session, salt, &outcome.records[session * turns], [&] {
          MutexLock lock(progress_mutex);
          progress.Update(++finished);
        });
      }
    };
    const int64_t start_us = clock_.NowMicros();
    std::vector<std::thread> threads;
    const auto wanted = std::min(static_cast<size_t>(options_.concurrency), conversations_.size());
    for (size_t i = 0; i < wanted; ++i) {
      threads.emplace_back(work);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    outcome.wall_us = clock_.NowMicros() - start_us;
    return outcome;
  }

 private:
  template <typename Fn>
  void RunSession(size_t session, const std::string& salt, RequestRecord* records,
                  const Fn& on_finished) {
    const Conversation& conversation = conversations_[session];
    Json messages = Json::array();
    if (!conversation.system.empty()) {
      messages.push_back({{"role", "system"}, {"content", conversation.system}});
    }
    auto client = server::HttpClient::Create(options_.base_url, options_.api_key);
    for (size_t turn = 0; turn < conversation.turns.size(); ++turn) {
      RequestRecord& record = records[turn];
      record.session = static_cast<int32_t>(session);
      record.turn = static_cast<int32_t>(turn);
      messages.push_back({{"role", "user"}, {"content", conversation.turns[turn]}});
      Json request;
      request["model"] = model_;
      request["messages"] = messages;
      request["max_tokens"] = options_.max_tokens;
      request["temperature"] = 0;
      request["stream"] = true;
      request["stream_options"] = {{"include_usage", true}};
      if (!salt.empty()) {
        request["cache_salt"] = salt + "-" + std::to_string(session) + "-" + std::to_string(turn);
      }
      AnswerReader reader(clock_, record);
      const Result<server::HttpReply> reply = (*client)->PostStreaming(
          "/v1/chat/completions", Dump(request), [&](std::string_view bytes) {
            reader.OnBytes(bytes);
            return true;
          });
      if (!reply) {
        record.error = reply.error().message;
      } else if (reply->status != 200) {
        record.error = ErrorText(*reply);
      }
      reader.Finish();
      on_finished();
      messages.push_back({{"role", "assistant"}, {"content", record.text}});
    }
  }

  const BenchOptions& options_;
  const std::string model_;
  const Clock& clock_;
  const std::vector<Conversation> conversations_;
};

Json DistributionJson(const workload::Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}};
}

Json ReportJson(const workload::LoadReport& report) {
  Json json;
  json["requests"] = report.requests;
  json["failed"] = report.failed;
  json["seconds"] = report.seconds;
  json["requests_per_second"] = report.requests_per_second;
  json["prompt_tokens"] = report.prompt_tokens;
  json["completion_tokens"] = report.completion_tokens;
  json["output_tokens_per_second"] = report.output_tokens_per_second;
  json["ttft_ms"] = DistributionJson(report.ttft);
  json["tpot_ms"] = DistributionJson(report.tpot);
  json["itl_ms"] = DistributionJson(report.itl);
  json["e2e_ms"] = DistributionJson(report.e2e);
  json["cached_tokens"] = report.knows_cache ? Json(report.cached_tokens) : Json();
  json["hit_rate"] = report.knows_cache ? Json(report.hit_rate) : Json();
  json["mean_segments"] = report.knows_segments ? Json(report.mean_segments) : Json();
  json["multi_segment_share"] = report.knows_segments ? Json(report.multi_segment_share) : Json();
  return json;
}

}  // namespace

Result<int> Bench(const BenchOptions& options) {
  const SystemClock clock;
  KVIK_ASSIGN(const std::unique_ptr<server::HttpClient> client,
              server::HttpClient::Create(options.base_url, options.api_key));
  std::string model = options.model;
  if (model.empty()) {
    KVIK_ASSIGN(model, FirstModel(*client));
  }
  std::optional<RecordedOutputs> recorded;
  std::error_code ignored;
  if (!options.outputs_path.empty() && std::filesystem::exists(options.outputs_path, ignored)) {
    KVIK_ASSIGN(recorded, RecordedOutputs::Load(options.outputs_path));
  }
  LoadRunner runner(options, model, clock);
  for (int32_t pass = 0; pass < options.warmup_passes; ++pass) {
    runner.Pass("warm-up", options.cold ? "warm-up-" + std::to_string(pass) : "");
  }
  // No two runs of a cold load may share a salt, or the second would find the first's blocks.
  const std::string salt = options.cold ? "cold-" + std::to_string(clock.NowMicros()) : "";
  const LoadRunner::Outcome outcome = runner.Pass(options.cold ? "cold" : "load", salt);
  const workload::LoadReport report = workload::Summarize(outcome.records, outcome.wall_us);

  std::optional<int32_t> differences;
  if (recorded) {
    differences = recorded->CountDifferences(outcome.records);
  } else if (!options.outputs_path.empty() && report.failed == 0) {
    KVIK_TRY(RecordedOutputs::Save(options.outputs_path, outcome.records));
  }
  if (options.json) {
    Json json = ReportJson(report);
    json["differing_outputs"] = differences ? Json(*differences) : Json();
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::fputs(workload::FormatReport(report).c_str(), stdout);
    if (differences) {
      std::printf("outputs identical: %s (%d of %zu differ from %s)\n",
                  *differences == 0 ? "yes" : "no", *differences, outcome.records.size(),
                  options.outputs_path.c_str());
    }
  }
  for (const RequestRecord& record : outcome.records) {
    if (!record.error.empty()) {
      std::fprintf(stderr, "kvik: session %d turn %d failed: %s\n", record.session, record.turn,
                   record.error.c_str());
      break;  // the first says enough
    }
  }
  return report.failed == 0 && differences.value_or(0) == 0 ? 0 : 1;
}

}  // namespace kvik::app
