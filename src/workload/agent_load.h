// SPDX-License-Identifier: Apache-2.0
// workload/agent_load.h: an agent that calls tools: each call's prompt repeats all before it, and
// the pause before it is the time that a tool took. Answers are planned: a thought and the text of
// a tool call, at the end an answer. Pure; equal options and material give an equal plan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "workload/load_plan.h"

namespace kvik::workload {

struct AgentTool {
  std::string name;
  std::string doc;  // one JSON object, as it stands in the system message
  std::vector<std::pair<std::string, std::string>> arguments;  // required ones: name, JSON type
};

struct AgentMaterial {
  std::vector<std::string> questions;
  std::vector<AgentTool> tools;
};

// A few tools and many questions of our own.
AgentMaterial MadeUpAgentMaterial();
// From JSON lines as the Berkeley Function Calling Leaderboard has them: {"question": [[{"role",
// "content"}]]} and {"name", "description", "parameters": {"properties", "required"}}.
// kInvalidInput names the line.
Result<AgentMaterial> ParseAgentMaterial(std::string_view questions, std::string_view tools);

struct AgentLoadOptions {
  int32_t sessions = 60;  // questions are used in turn
  int32_t min_tool_calls = 2;
  int32_t max_tool_calls = 10;  // uniform
  int32_t result_words = 400;   // of what a tool finds: mean, log-normal with sigma 0.8
  // A session ends with its answer before it is longer; a token counts as 3 bytes, which is less
  // than it has in most tokenizers.
  int32_t context_tokens = 8192;
  int32_t scale = 1;  // context and results are divided by it
  uint64_t seed = 0;
};

// REQUIRES: material has questions and tools.
LoadPlan PlanAgent(const AgentMaterial& material, const AgentLoadOptions& options);

}  // namespace kvik::workload
