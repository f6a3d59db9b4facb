// SPDX-License-Identifier: Apache-2.0
#include "app/bench_plan.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "workload/agent_load.h"
#include "workload/multi_turn.h"
#include "workload/token_load.h"
#include "workload/trace_load.h"

namespace kvik::app {
namespace {

using workload::LoadPlan;

Result<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Err(ErrorCode::kNotFound, "cannot read %s", path.c_str());
  }
  return std::move(text).str();
}

// The package's data lies at its root, in data/ or in bfcl_eval/data/, as one unpacks it.
Result<workload::AgentMaterial> ReadAgentMaterial(const std::string& folder) {
  for (const char* within : {"", "/data", "/bfcl_eval/data"}) {
    const std::string root = folder + within;
    std::error_code ignored;
    if (std::filesystem::exists(root + "/BFCL_v4_web_search.json", ignored)) {
      KVIK_ASSIGN(const std::string questions, ReadText(root + "/BFCL_v4_web_search.json"));
      KVIK_ASSIGN(const std::string tools, ReadText(root + "/multi_turn_func_doc/web_search.json"));
      Result<workload::AgentMaterial> material = workload::ParseAgentMaterial(questions, tools);
      return material ? std::move(material) : material.error().Wrap(root);
    }
  }
  return Err(
      ErrorCode::kNotFound,
      "--bfcl %s: no BFCL_v4_web_search.json there; give the folder of an unpacked bfcl-eval",
      folder.c_str());
}

Result<LoadPlan> PlanAgentic(const WorkloadOptions& options) {
  workload::AgentMaterial material = workload::MadeUpAgentMaterial();
  if (!options.bfcl_folder.empty()) {
    KVIK_ASSIGN(material, ReadAgentMaterial(options.bfcl_folder));
  }
  workload::AgentLoadOptions agent;
  agent.sessions = options.sessions.value_or(agent.sessions);
  agent.max_tool_calls = options.turns.value_or(agent.max_tool_calls);
  agent.min_tool_calls = std::min(agent.min_tool_calls, agent.max_tool_calls);
  agent.result_words = options.result_words;
  agent.context_tokens =
      options.context_tokens > 0 ? options.context_tokens * options.scale : agent.context_tokens;
  agent.scale = options.scale;
  agent.seed = options.seed;
  return workload::PlanAgent(material, agent);
}

int32_t Scaled(int32_t tokens, int32_t scale) { return std::max(1, tokens / scale); }

Result<LoadPlan> PlanLongContext(workload::LongContextOptions shape, const WorkloadOptions& options,
                                 const PacingOptions& pacing) {
  if (!pacing.rate) {
    return Err(ErrorCode::kInvalidInput,
               "--workload %s needs --rate: its pauses follow from the requests a second",
               options.name.c_str());
  }
  if (pacing.concurrency) {
    return Err(ErrorCode::kInvalidInput, "--workload %s is an open loop: leave --concurrency out",
               options.name.c_str());
  }
  shape.requests = options.requests.value_or(shape.requests);
  shape.turns = options.turns.value_or(shape.turns);
  shape.requests_per_second = *pacing.rate;
  shape.cv = pacing.cv.value_or(shape.cv);
  shape.scale = options.scale;
  shape.seed = options.seed;
  if (options.context_tokens > 0) {
    shape.context_tokens = options.context_tokens * options.scale;
  }
  return workload::PlanLongContext(shape);
}

Result<LoadPlan> MakeLoad(const WorkloadOptions& options, const PacingOptions& pacing) {
  if (const auto shape = workload::LongContextNamed(options.name)) {
    return PlanLongContext(*shape, options, pacing);
  }
  if (options.name == "multi-turn") {
    workload::MultiTurnOptions chat;
    chat.sessions = options.sessions.value_or(chat.sessions);
    chat.turns = options.turns.value_or(chat.turns);
    chat.system_words = options.system_words;
    chat.turn_words = options.turn_words;
    chat.seed = options.seed;
    return workload::PlanMultiTurn(chat, options.max_tokens);
  }
  if (options.name == "random" || options.name == "shared-prefix") {
    workload::RandomLoadOptions random;
    random.requests = options.requests.value_or(random.requests);
    random.input_tokens = Scaled(options.input_tokens, options.scale);
    random.output_tokens = Scaled(options.output_tokens, options.scale);
    random.spread = options.spread;
    if (options.name == "shared-prefix") {
      random.prefix_tokens = Scaled(options.prefix_tokens, options.scale);
      random.prefixes = options.prefixes;
    }
    random.seed = options.seed;
    return workload::PlanRandom(random);
  }
  if (options.name == "shared-docs") {
    if (options.documents_per_request > options.documents) {
      return Err(ErrorCode::kInvalidInput, "--documents-per-request is more than --documents");
    }
    workload::SharedDocsOptions docs;
    docs.requests = options.requests.value_or(docs.requests);
    docs.documents = options.documents;
    docs.documents_per_request = options.documents_per_request;
    docs.document_tokens = Scaled(options.input_tokens, options.scale);
    docs.output_tokens = Scaled(options.output_tokens, options.scale);
    docs.seed = options.seed;
    return workload::PlanSharedDocs(docs);
  }
  if (options.name == "agentic") {
    return PlanAgentic(options);
  }
  if (options.name == "trace") {
    if (options.trace_path.empty()) {
      return Err(ErrorCode::kInvalidInput, "--workload trace needs --trace FILE");
    }
    KVIK_ASSIGN(const std::string text, ReadText(options.trace_path));
    return workload::PlanTrace(text, options.trace_path,
                               {.requests = options.requests.value_or(0),
                                .context_tokens = options.context_tokens,
                                .scale = options.scale,
                                .seed = options.seed});
  }
  return Err(ErrorCode::kInvalidInput, "there is no workload '%s'", options.name.c_str());
}

}  // namespace

bool IsWorkload(const std::string& name) {
  constexpr const char* kNames[] = {"multi-turn",  "random",  "shared-prefix",
                                    "shared-docs", "agentic", "trace"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         workload::LongContextNamed(name).has_value();
}

Result<BenchPlan> MakeBenchPlan(const WorkloadOptions& options, const PacingOptions& pacing) {
  if (pacing.rate && pacing.concurrency) {
    return Err(ErrorCode::kInvalidInput,
               "--rate (open loop) and --concurrency (closed loop) exclude each other");
  }
  BenchPlan plan;
  KVIK_ASSIGN(plan.load, MakeLoad(options, pacing));
  const size_t sessions = plan.load.sessions.size();
  const bool own_starts =
      plan.load.has_starts && !pacing.concurrency && (!pacing.rate || options.name != "trace");
  if (own_starts && !pacing.arrival) {
    for (const workload::PlannedSession& session : plan.load.sessions) {
      plan.starts_s.push_back(session.start_s / pacing.speedup);
    }
  } else if (pacing.rate) {
    const double calls_a_session =
        static_cast<double>(plan.load.calls()) / static_cast<double>(sessions);
    const auto fallback =
        pacing.cv ? workload::ArrivalProcess::kGamma : workload::ArrivalProcess::kPoisson;
    plan.starts_s = workload::ArrivalTimes({.process = pacing.arrival.value_or(fallback),
                                            .per_second = *pacing.rate / calls_a_session,
                                            .cv = pacing.cv.value_or(1),
                                            .seed = options.seed},
                                           sessions);
  } else if (pacing.arrival || pacing.cv) {
    return Err(ErrorCode::kInvalidInput, "--arrival and --cv need --rate");
  }
  plan.concurrency = pacing.concurrency.value_or(plan.concurrency);
  return plan;
}

}  // namespace kvik::app
