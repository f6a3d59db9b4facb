// SPDX-License-Identifier: Apache-2.0
#include "workload/trace_load.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json_parse.h"
#include "workload/trace_reader.h"

namespace kvik::workload {
namespace {

using Json = nlohmann::json;

enum : uint64_t { kBlock = 1, kTail, kAnswer };

// One request before it has found its session.
struct Arrival {
  int64_t at_us = 0;
  int64_t session = -1;  // -1: its own
  PlannedCall call;
};

std::vector<Arrival> FromBlocks(const Trace& trace, const TraceLoadOptions& options) {
  const int32_t block_tokens = std::max(1, trace.block_size_tokens / options.scale);
  std::vector<Arrival> arrivals;
  for (const TraceRequest& request : trace.requests) {
    const uint64_t number = arrivals.size();
    std::vector<TokenRun> prompt;
    for (const uint64_t block : request.blocks) {
      // Not by the seed: equal ids are equal tokens in every run over the trace.
      prompt.push_back({ContentOf(0, kBlock, block), block_tokens});
    }
    const int32_t tail = (request.input_tokens -
                          static_cast<int32_t>(request.blocks.size()) * trace.block_size_tokens) /
                         options.scale;
    // The last token of a prompt is always computed; an empty prompt cannot be sent.
    prompt.push_back({ContentOf(options.seed, kTail, number), std::max(1, tail)});
    Arrival arrival;
    arrival.at_us = request.arrival_us;
    arrival.session = request.session;
    arrival.call.prompt = std::move(prompt);
    arrival.call.max_tokens = std::max(1, request.output_tokens / options.scale);
    arrival.call.output =
        TokenRun{ContentOf(options.seed, kAnswer, number), arrival.call.max_tokens};
    arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

// `text` was accepted by ParseTrace, so its fields are there.
std::vector<Arrival> FromText(std::string_view text) {
  std::vector<Arrival> arrivals;
  std::map<std::string, int64_t> sessions;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const Result<Json> json =
        ParseJson<Json>(text.substr(0, end), {.max_bytes = size_t{1} << 26, .max_nesting = 8});
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!json || !json->is_object()) {
      continue;  // an empty line
    }
    Arrival arrival;
    arrival.at_us = (*json)["timestamp"].get<int64_t>();
    arrival.session = sessions
                          .emplace((*json)["session_id"].get<std::string>(),
                                   static_cast<int64_t>(sessions.size()))
                          .first->second;
    std::string output = (*json)["output"].get<std::string>();
    arrival.call.prompt = (*json)["input"].get<std::string>();
    arrival.call.max_tokens = std::max(1, static_cast<int32_t>(output.size() / 4));
    if (!output.empty()) {
      arrival.call.output = std::move(output);
    }
    arrivals.push_back(std::move(arrival));
  }
  std::stable_sort(arrivals.begin(), arrivals.end(),
                   [](const Arrival& a, const Arrival& b) { return a.at_us < b.at_us; });
  return arrivals;
}

int64_t Tokens(const PlannedCall& call) {
  int64_t tokens = call.max_tokens;
  if (const auto* runs = std::get_if<std::vector<TokenRun>>(&call.prompt)) {
    for (const TokenRun& run : *runs) {
      tokens += run.tokens;
    }
  } else {
    tokens += static_cast<int64_t>(std::get<std::string>(call.prompt).size() / 4);
  }
  return tokens;
}

}  // namespace

Result<LoadPlan> PlanTrace(std::string_view text, const std::string& name,
                           const TraceLoadOptions& options) {
  KVIK_CHECK(options.scale > 0);
  KVIK_ASSIGN(const Trace trace, ParseTrace(text, name));
  const Result<Json> first = ParseJson<Json>(text.substr(0, text.find('\n')), {.max_nesting = 8});
  const bool is_text = first && first->is_object() && first->contains("input");
  if (is_text && options.scale != 1) {
    return Err(ErrorCode::kInvalidInput,
               "%s holds text, whose length cannot be divided: leave --scale out", name.c_str());
  }
  std::vector<Arrival> arrivals = is_text ? FromText(text) : FromBlocks(trace, options);
  if (options.requests > 0 && arrivals.size() > static_cast<size_t>(options.requests)) {
    arrivals.resize(static_cast<size_t>(options.requests));
  }
  LoadPlan plan;
  plan.has_starts = true;
  const int64_t begin_us = arrivals.front().at_us;
  std::map<int64_t, size_t> sessions;  // the trace's to the plan's
  for (Arrival& arrival : arrivals) {
    if (options.context_tokens > 0 && Tokens(arrival.call) > options.context_tokens) {
      ++plan.left_out;
      continue;
    }
    const double at_s = static_cast<double>(arrival.at_us - begin_us) * 1e-6;
    const auto known = sessions.find(arrival.session);
    if (arrival.session < 0 || known == sessions.end()) {
      if (arrival.session >= 0) {
        sessions.emplace(arrival.session, plan.sessions.size());
      }
      PlannedSession session;
      session.start_s = at_s;
      session.calls.push_back(std::move(arrival.call));
      plan.sessions.push_back(std::move(session));
    } else {
      PlannedSession& session = plan.sessions[known->second];
      arrival.call.not_before_s = at_s - session.start_s;
      session.calls.push_back(std::move(arrival.call));
    }
  }
  if (plan.sessions.empty()) {
    return Err(ErrorCode::kInvalidInput, "%s: every request is longer than --context %d",
               name.c_str(), options.context_tokens);
  }
  return plan;
}

}  // namespace kvik::workload
